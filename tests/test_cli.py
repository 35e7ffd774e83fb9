"""The command line: what each command prints, writes and returns, and how it fails."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from lacc.__main__ import main

GLA = str(ROOT / "examples" / "gla.la")
SMALL = ["-D", "K=8", "-D", "V=6"]
WRONG = """\
variant wrong
dim K = 4, V = 5
input q, k : [K]
input v : [V]
state S : [K, V]
output o : [V]
S[t] = S[t-1] + v @ k.T
o = S[t].T @ qq
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lacc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: its exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lacc", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        out, err = capsys.readouterr()
        return code, out, err

    return run


# ---- check --------------------------------------------------------------------------------------


def test_check_says_that_a_spec_is_fine(lacc: Run) -> None:
    code, out, err = lacc("check", GLA)
    assert (code, err) == (0, "")
    assert "gla" in out


def test_check_says_what_it_found(lacc: Run) -> None:
    code, out, _ = lacc("check", "-v", GLA)
    assert code == 0
    for word in ("gate", "update", "readout", "modes"):
        assert word in out


def test_check_reports_every_fault_and_goes_on_to_the_next_file(lacc: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.la"
    wrong.write_text(WRONG)
    code, out, err = lacc("check", str(wrong), GLA)
    assert code == 1
    assert "LA0301" in err and "qq" in err and f"{wrong}:7:" in err
    assert "gla" in out
    assert "\x1b" not in err


def test_check_of_a_missing_file_is_a_matter_of_usage(lacc: Run, tmp_path: Path) -> None:
    assert lacc("check", str(tmp_path / "none.la"))[0] == 2
    assert lacc("check", str(tmp_path))[0] == 2


def test_check_of_what_cannot_be_read_is_a_matter_of_usage(lacc: Run) -> None:
    if Path("/proc/self/mem").exists():
        code, _, err = lacc("check", "/proc/self/mem")
        assert code == 2
        assert "cannot read" in err


def test_signs_that_the_output_cannot_show() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lacc", "check", "-v", GLA],
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert rb"gate        \u03b1 = exp(g)" in done.stdout


def test_check_of_bytes_that_are_no_text_is_a_spec_error(lacc: Run, tmp_path: Path) -> None:
    binary = tmp_path / "binary.la"
    binary.write_bytes(b"variant x\xff\xfe\x00")
    code, _, err = lacc("check", str(binary))
    assert code == 1
    assert "LA0101" in err


def test_check_notices_a_spec_that_git_ignores(lacc: Run, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.la\n")
    spec = tmp_path / "gla.la"
    spec.write_text(Path(GLA).read_text(encoding="utf-8"), encoding="utf-8")
    code, _, err = lacc("check", str(spec))
    assert code == 0
    assert "ignores" in err and "!*.la" in err
    (tmp_path / ".gitignore").write_text("*.la\n!*.la\n")
    assert lacc("check", str(spec))[2] == ""


def test_overrides_reach_the_spec_and_bad_ones_are_told_apart(lacc: Run) -> None:
    assert lacc("check", GLA, "-D", "K=32")[0] == 0
    assert lacc("check", GLA, "-D", "K")[0] == 2
    assert lacc("check", GLA, "-D", "K=many")[0] == 2
    code, _, err = lacc("check", GLA, "-D", "Q=3")
    assert code == 1
    assert "LA04" in err


def test_check_is_quick(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def seconds() -> float:
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "lacc", "check", GLA],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env=kept | {"PYTHONPYCACHEPREFIX": str(tmp_path)},
        )
        after = os.times()
        used = after.children_user + after.children_system
        return used - before.children_user - before.children_system

    assert min(seconds() for _ in range(6)) < 0.5  # 0.3 s where nothing else runs


# ---- compile ------------------------------------------------------------------------------------


def test_compile_writes_a_file_that_stands_alone(lacc: Run, tmp_path: Path) -> None:
    out = tmp_path / "gla_np.py"
    code, said, _ = lacc("compile", GLA, "--target", "numpy", "-o", str(out), *SMALL)
    assert code == 0
    assert str(out) in said
    program = (
        "import sys; sys.modules['lacc'] = None\nimport numpy as np, gla_np\n"
        "x = np.ones((1, 5, 2, 8)); o, s = gla_np.gla(x, x, np.ones((1, 5, 2, 6)), -x)\n"
        "print(o.shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.stdout.decode().strip() == "(1, 5, 2, 6)", done.stderr.decode()


def test_the_same_spec_gives_the_same_bytes(lacc: Run, tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        assert lacc("compile", GLA, "-o", str(tmp_path / name))[0] == 0
    assert (tmp_path / "a.py").read_bytes() == (tmp_path / "b.py").read_bytes()


def test_a_file_of_somebody_else_is_not_overwritten(lacc: Run, tmp_path: Path) -> None:
    out = tmp_path / "mine.py"
    out.write_text("print('mine')\n")
    code, _, err = lacc("compile", GLA, "-o", str(out))
    assert code == 2
    assert "--force" in err
    assert out.read_text() == "print('mine')\n"
    assert lacc("compile", GLA, "-o", str(out), "--force")[0] == 0
    assert lacc("compile", GLA, "-o", str(out))[0] == 0
    assert os.listdir(tmp_path) == ["mine.py"]


@pytest.mark.parametrize("words", [("compile", "--target", "c"), ("compile",), ("derive",)])
def test_nothing_is_written_to_an_empty_path(lacc: Run, words: tuple[str, ...]) -> None:
    command, *more = words
    code, _, err = lacc(command, GLA, *more, "-o", "")
    assert code == 2 and "it is empty" in err


def test_stages_in_a_file_are_written_again(lacc: Run, tmp_path: Path) -> None:
    for _ in range(2):
        out = tmp_path / "stages.txt"
        assert lacc("compile", GLA, "--emit", "recurrence,tile", "-o", str(out))[0] == 0
    assert out.read_text().startswith("# Written by lacc from variant gla: recurrence, tile\n")


def test_a_failed_compile_leaves_the_old_file(lacc: Run, tmp_path: Path) -> None:
    out, wrong = tmp_path / "out.py", tmp_path / "wrong.la"
    assert lacc("compile", GLA, "-o", str(out))[0] == 0
    before = out.read_bytes()
    wrong.write_text(WRONG)
    assert lacc("compile", str(wrong), "-o", str(out))[0] == 1
    assert out.read_bytes() == before


def test_compile_into_a_folder_that_is_not_there(lacc: Run, tmp_path: Path) -> None:
    assert lacc("compile", GLA, "-o", str(tmp_path / "none" / "x.py"))[0] == 2
    assert lacc("compile", GLA, "-o", str(tmp_path))[0] == 2


def test_c_goes_into_a_folder(lacc: Run, tmp_path: Path) -> None:
    names, out = ["gla.c", "gla.h", "gla_c.py"], tmp_path / "out"
    code, said, _ = lacc("compile", GLA, "--target", "c", "-o", str(out))
    assert code == 0
    assert sorted(os.listdir(out)) == names
    assert all(str(out / name) in said for name in names)
    before = {name: (out / name).read_bytes() for name in names}
    assert lacc("compile", GLA, "--target", "c", "-o", str(out))[0] == 0
    assert before == {name: (out / name).read_bytes() for name in names}
    assert lacc("compile", GLA, "--target", "c", "--emit", "code")[1] == before["gla.c"].decode()


def test_c_goes_into_no_file_and_over_nothing_of_somebody_else(lacc: Run, tmp_path: Path) -> None:
    for wrong in (tmp_path / "gla.c", tmp_path / "none" / "out"):
        assert lacc("compile", GLA, "--target", "c", "-o", str(wrong))[0] == 2
    (tmp_path / "gla.h").write_text("/* mine */\n")
    code, _, err = lacc("compile", GLA, "--target", "c", "-o", str(tmp_path))
    assert code == 2
    assert "--force" in err
    assert os.listdir(tmp_path) == ["gla.h"]
    assert lacc("compile", GLA, "--target", "c", "-o", str(tmp_path), "--force")[0] == 0


def test_c_on_a_full_disk_leaves_what_was_there(
    lacc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "chmod", refuse)
    code, _, err = lacc("compile", GLA, "--target", "c", "-o", str(tmp_path))
    assert code == 2
    assert "No space left on device" in err
    assert os.listdir(tmp_path) == []


def test_c_without_a_compiler(lacc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    for command in ("run", "verify"):
        code, _, err = lacc(command, GLA, "--target", "c")
        assert code == 3
        assert "CC=no-such-compiler: there is no such compiler" in err
    assert "no-such-compiler" in lacc("targets")[1]
    assert lacc("compile", GLA, "--target", "c", "-o", str(tmp_path))[0] == 0


@pytest.mark.parametrize("stage", ["ast", "ir", "recurrence", "plan", "tile", "code"])
def test_every_stage_can_be_printed(lacc: Run, stage: str) -> None:
    code, out, err = lacc("compile", GLA, "--emit", stage)
    assert code == 0, err
    assert len(out) > 40


def test_stages_can_be_printed_together(lacc: Run) -> None:
    code, out, err = lacc("compile", GLA, "--emit=recurrence,tile")
    assert code == 0, err
    alone = [lacc("compile", GLA, "--emit", stage)[1] for stage in ("recurrence", "tile")]
    assert out == f"# ---- recurrence\n\n{alone[0]}\n# ---- tile\n\n{alone[1]}"


@pytest.mark.parametrize("stages", ["recurrence,tiles", "", "tile,", "nothing"])
def test_a_stage_that_does_not_exist_is_a_matter_of_usage(lacc: Run, stages: str) -> None:
    code, out, err = lacc("compile", GLA, "--emit", stages)
    assert (code, out) == (2, "")
    assert "ast, ir, recurrence, plan, tile, code" in err


# ---- run, verify, explain, targets --------------------------------------------------------------


def test_run_draws_arrays_and_compares_with_the_reference(lacc: Run) -> None:
    code, out, _ = lacc("run", GLA, "--shape", "B=1,T=20,H=2", *SMALL)
    assert code == 0
    assert "[1, 20, 2, 6]" in out and "error" in out and "time" in out and "plan" in out


def test_run_compares_stabilized_states_by_what_they_stand_for(lacc: Run) -> None:
    code, out, _ = lacc("run", str(ROOT / "examples" / "mlstm.la"), "--shape", "B=1,T=50,H=2")
    assert code == 0
    assert float(re.findall(r"error +(\S+) at most", out)[0]) < 1e-5


def test_run_takes_arrays_from_a_file(lacc: Run, tmp_path: Path) -> None:
    x = np.linspace(-1, 0, 3 * 8).reshape(1, 3, 1, 8)
    file = tmp_path / "x.npz"
    np.savez(file, q=x, k=x, v=x[..., :6], g=x)
    code, out, err = lacc("run", GLA, "--input", str(file))
    assert code == 0, err
    assert "[1, 3, 1, 6]" in out


def test_run_names_the_array_that_does_not_fit(lacc: Run, tmp_path: Path) -> None:
    x = np.zeros((1, 3, 1, 8))
    file = tmp_path / "x.npz"
    np.savez(file, q=x, k=x[:, :2], v=x, g=x)
    code, _, err = lacc("run", GLA, "--input", str(file))
    assert code == 2
    assert "k:" in err and "Traceback" not in err


def test_run_says_what_is_wrong_with_a_file_of_arrays(lacc: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    for broken in (b"no arrays", b"PK\x05\x06" + bytes(17)):
        file.write_bytes(broken)
        code, _, err = lacc("run", GLA, "--input", str(file))
        assert code == 2 and "npz file" in err and "pickle" not in err
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "np.savez" in lacc("run", GLA, "--input", str(tmp_path / "one.npy"))[2]
    np.savez_compressed(file, q=np.random.default_rng(0).random(9999))
    whole = file.read_bytes()
    file.write_bytes(whole[:999] + bytes(999) + whole[1998:])
    assert lacc("run", GLA, "--input", str(file))[0] == 2
    assert "no file" in lacc("run", GLA, "--input", str(tmp_path / "none.npz"))[2]


@pytest.mark.parametrize("option", ["--shape=B=1", "--seed=1", "--dtype=float64"])
def test_arrays_of_a_file_are_not_drawn(lacc: Run, tmp_path: Path, option: str) -> None:
    code, _, err = lacc("run", GLA, "--input", str(tmp_path / "x.npz"), option)
    assert code == 2
    assert option.split("=")[0] in err


def test_a_target_that_does_not_exist(lacc: Run) -> None:
    code, _, err = lacc("run", GLA, "--target", "nunpy")
    assert code == 3
    assert "did you mean `numpy`" in err


def test_a_target_that_cannot_run_here(lacc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from lacc.runtime import torch_calls

    monkeypatch.setattr(torch_calls, "missing", lambda: "it needs a GPU")
    code, _, err = lacc("run", GLA, "--target", "triton")
    assert code == 3
    assert "LA0702" in err and "needs a GPU" in err
    assert lacc("compile", GLA, "--target", "triton")[0] == 0
    assert "needs a GPU" in lacc("targets")[1]


def test_verify_prints_one_table_and_passes(lacc: Run) -> None:
    code, out, err = lacc("verify", GLA, *SMALL)
    assert code == 0, out + err


def test_explain_takes_a_spec_a_code_or_a_name(lacc: Run) -> None:
    code, out, _ = lacc("explain", GLA, "--shape", "B=1,T=4096,H=16")
    assert code == 0
    assert "4096" in out
    assert "LA0301" in lacc("explain", "la0301")[1]
    assert "feature taylor2" in lacc("explain", "feature_maps.taylor2")[1]
    assert "log(1 + exp(x))" in lacc("explain", "softplus")[1]
    listed = lacc("explain", "feature_maps")[1]
    assert "feature_maps.taylor2: The Taylor series" in listed and "feature_maps.favor" in listed
    assert lacc("explain", "nonsense")[0] == 2
    assert "did you mean `feature_maps.taylor2`" in lacc("explain", "feature_maps.tailor2")[2]
    assert lacc("explain", GLA, "--shape", "B=1,Z=2")[0] == 2


def test_targets_lists_what_there_is(lacc: Run) -> None:
    code, out, _ = lacc("targets")
    assert code == 0
    assert "reference" in out and "numpy" in out


def test_usage(lacc: Run) -> None:
    assert lacc("--version")[1].startswith("lacc 0.")
    assert lacc("no-such-command")[0] == 2
    assert lacc("compile", GLA, "--chunk", "0")[0] == 2
    assert "check" in lacc("--help")[1]


# ---- faults of our own --------------------------------------------------------------------------


def test_an_internal_error_becomes_a_report(
    lacc: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from lacc import driver

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(driver, "load", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("LACC_DEBUG", raising=False)
    code, _, err = lacc("check", GLA)
    assert code == 70
    assert "Traceback" not in err
    (report,) = tmp_path.glob("lacc-fault-*.txt")
    assert str(report) in err
    text = report.read_text(encoding="utf-8")
    assert "a fault of ours" in text and f"lacc check {GLA}" in text and "variant gla" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ("", "1"))
def test_output_onto_a_full_disk_is_said_so(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lacc", "check", "-v", str(ROOT / "examples" / "gla.la")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, "no space is left" in done.stderr) == (2, True), done.stderr


def test_a_layer_goes_into_a_file_of_its_own(lacc: Run, tmp_path: Path) -> None:
    out = tmp_path / "my_layer.py"
    assert lacc("compile", GLA, "--emit=layer", "-o", str(out))[0] == 0
    assert "from gla_c import gla, gla_step, gla_stepper\n" in out.read_text("utf-8")
    assert lacc("compile", GLA, "-t", "triton", "--emit=layer", "-o", str(out))[0] == 0
    assert "from gla import gla, gla_step\n" in out.read_text("utf-8")
    assert lacc("compile", GLA, "-t", "cuda", "--emit=layer", "-o", str(out))[0] == 0
    assert "from gla_cuda import gla, gla_step\n" in out.read_text("utf-8")
    code, _, err = lacc("compile", GLA, "-t", "numpy", "--emit=layer")
    assert code == 3 and "compile for c or cuda or triton" in err

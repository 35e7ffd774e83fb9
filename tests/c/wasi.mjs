// A WASM program, the folder that it sees as "." and its arguments in; what it prints and its exit code out.
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";
import { WASI } from "node:wasi";

const [program, folder, ...rest] = argv.slice(2);
const options = { args: [program, ...rest], preopens: { ".": folder }, returnOnExit: true };
const wasi = new WASI({ version: "preview1", ...options });
const compiled = await WebAssembly.compile(await readFile(program));
exit(wasi.start(await WebAssembly.instantiate(compiled, wasi.getImportObject())));

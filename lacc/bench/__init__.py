"""A spec and sizes go in; times beside the floor of the machine, and beside what else one could
use, come out: as a record, a table and a page.

    case.py         what is measured: a spec, a mode, sizes; the arrays of it
    floors.py       what every exact algorithm has to compute and to move
    rates.py        what this machine computes and moves, measured
    contestants.py  who takes part: targets of lacc, softmax attention, a loop in torch, packages
    measure.py      numbers checked first, then rounds in turn
    record.py       all that was measured, as JSON
"""

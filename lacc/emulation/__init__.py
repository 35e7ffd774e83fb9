"""CUDA source in, a program of the CPU out: the header that stands in for the machine, compiled
with the source by g++."""

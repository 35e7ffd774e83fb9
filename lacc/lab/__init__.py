"""Specs go in, a report on whether their gates are any good comes out: tiny models, small tasks."""

"""Text and decorated Python go in, the same syntax (`lacc.spec.syntax`) comes out."""

"""The catalogue of diagnostics: one Markdown page per code, read by `lacc.diagnostics`.

A page opens with its title, its message and its help (templates, filled by
`lacc.diagnostics.error`), then says what the code means, shows a spec that gets it, and the spec to
write instead."""

"""Configuration files, and applying them to a namespace.

Owns: the format of both files, the emulator's `Config.json` and twinbus's own TOML, and the errors in them: each error
names the file, the key and the reason. Knows nothing of the command line. The `settings` module, the model and the
filters decide which values are valid.
"""

"""Configuration files, and applying them to a namespace.

Owns: the settings of a server and their keys in the TOML file. Knows nothing of the command line. `model.entity_file`
reads the entities in TOML files and in emulator files.
"""

"""Files with the entities of a namespace: the TOML of twinbus, and the `Config.json` of Microsoft's emulator.

Owns: reading and writing both formats, and the errors for invalid files: each error names the file, the key and the
reason.
Knows nothing of servers and clients: `server.config` applies a plan at startup, `client.management` to a live
namespace.
"""

"""The list of the commands `twinbus message ...`.

Owns their names and order. Each command is in the file of its group.
"""

from __future__ import annotations

import typer

from twinbus.cli.message import browse, bulk, receive, scheduled, send
from twinbus.cli.output import CommandGroup

app = typer.Typer(cls=CommandGroup, no_args_is_help=True)


@app.callback()
def message() -> None:
    """Send, receive, find, resubmit, move and delete messages.

    ENTITY is a queue, a topic, or a subscription (TOPIC/Subscriptions/NAME); --dead-letter names its dead-letter queue.
    """


app.command(epilog=send.EXAMPLES)(send.send)
app.command(epilog=receive.EXAMPLES)(receive.receive)
app.command(epilog=browse.PEEK_EXAMPLES)(browse.peek)
app.command(epilog=browse.WATCH_EXAMPLES)(browse.watch)
app.command("dead-letters", epilog=browse.DEAD_LETTERS_EXAMPLES)(browse.dead_letters)
app.command(epilog=bulk.RESUBMIT_EXAMPLES)(bulk.resubmit)
app.command(epilog=bulk.MOVE_EXAMPLES)(bulk.move)
app.command(epilog=bulk.DELETE_EXAMPLES)(bulk.delete)
app.command(epilog=bulk.PURGE_EXAMPLES)(bulk.purge)
app.command(epilog=scheduled.CANCEL_EXAMPLES)(scheduled.cancel)
app.command(epilog=scheduled.RESCHEDULE_EXAMPLES)(scheduled.reschedule)

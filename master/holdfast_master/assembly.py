"""One master process put together from its configuration and its books.

Belongs here: the core that goes on where the journal ends, and the wiring of core, books and
server. Does not belong here: what any of them does.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast_master.bookkeeping import Books
from holdfast_master.config import MasterConfig
from holdfast_master.core import Core
from holdfast_master.serving import Ending, Master
from holdfast_master.settings import CoreIdentity
from holdfast_wire import __version__

log = logging.getLogger(__name__)


async def serve(config: MasterConfig, books: Books) -> Ending:
    """Run one master process, restored from its books where there is any history.

    Raises:
        ServeError: the port cannot be had.
        CredentialsError: the certificate files cannot be read.
    """
    identity = CoreIdentity(
        job_name=config.job_name,
        job_uid=config.job_uid,
        epoch=config.epoch,
        incarnation=config.incarnation,
        version=__version__,
    )
    if books.history.records:
        core = Core.restore(books.history.records, identity, config.core)
    else:
        core = Core(identity, config.core)
    master = Master(config, core, books.journal, books.history, books.decider(core))
    master.keep_books = lambda: books.after_batch(core.durable_state, master.note_journal)
    try:
        ending = await master.run()
        log.info("exiting: %s", ending.value, extra=master.summary())
        return ending
    finally:
        await asyncio.to_thread(books.close)

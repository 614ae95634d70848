"""One master process put together from its configuration and its storage.

Belongs here: the core that goes on where the journal ends, and the wiring of core, storage and
server. Does not belong here: the work of any of them.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast_master.core import Core
from holdfast_master.process.serving import Master, ProcessEnd
from holdfast_master.process.settings import MasterConfig
from holdfast_master.process.storage import Storage
from holdfast_master.settings import CoreIdentity
from holdfast_wire import __version__

log = logging.getLogger(__name__)


async def serve(config: MasterConfig, storage: Storage) -> ProcessEnd:
    """Run one master process, restored from its storage where there is any history.

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
    if storage.history.records:
        core = Core.restore(storage.history.records, identity, config.core)
    else:
        core = Core(identity, config.core)
    journal, history, decider = storage.journal, storage.history, storage.decider(core)
    master = Master(config, core, journal, history, decider, storage.evidence)
    master.after_records = lambda: storage.after_batch(core.durable_state, master.note_journal)
    try:
        ending = await master.run()
        log.info("exiting: %s", ending.value, extra=master.summary())
        return ending
    finally:
        await asyncio.to_thread(storage.close)

"""Requests that wait for the core's answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import grpc

from holdfast_master.inputs import Input, UserCall, UserRequest
from holdfast_master.instructions import Refuse, Reply, UserResponse
from holdfast_master.server.rpc import CallRefusedError

WAITING_LIMIT = 1_000
"""Requests that wait at once; more are refused, so that a flood cannot fill the memory."""


class Questions:
    """Every request that the core has not answered yet."""

    def __init__(self, put: Callable[[Input], Awaitable[None]]) -> None:
        """Make an empty table; `put` hands inputs to the loop."""
        self._put = put
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[UserResponse]] = {}

    async def ask(self, request: UserRequest, who: str, seconds: float) -> UserResponse:
        """The core's answer; `who` calls, for the event.

        Raises:
            CallRefusedError: the core refused, or did not answer in time.
        """
        if len(self._waiting) >= WAITING_LIMIT:
            text = f"{WAITING_LIMIT} requests are waiting already; try again later"
            raise CallRefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY", text)
        number = next(self._numbers)
        answer: asyncio.Future[UserResponse] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(seconds):
                await self._put(UserCall(number, request, who))
                return await answer
        except TimeoutError as error:
            text = f"no answer within {seconds:.1f} s; what was asked for may still happen"
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise CallRefusedError(code, "NO_ANSWER", text) from error
        finally:
            del self._waiting[number]

    def reply(self, instruction: Reply) -> None:
        """Pass on an answer; a caller that has gone gets none."""
        answer = self._waiting.get(instruction.request_id)
        if answer is not None and not answer.done():
            answer.set_result(instruction.response)

    def refuse(self, instruction: Refuse) -> None:
        """Pass on a refusal."""
        answer = self._waiting.get(instruction.request_id)
        if answer is not None and not answer.done():
            code = grpc.StatusCode[instruction.code.name]
            answer.set_exception(CallRefusedError(code, instruction.reason, instruction.text))

"""Traffic as it comes from people: chats that share system prompts, tenants, adapters, long tails.

Faker chooses names and mixes; the number that it is seeded with is drawn, used, and forgotten, for
a scenario holds what came of it. Tokens stay a pure function of family, length and tail: a system
prompt is a family, a chat's turns are longer and longer prefixes of that family's stream, and what
one user asks alone is a tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from faker import Faker

from kvconform.scenario.actions import Arrive
from kvconform.scenario.prompt import Prompt

SYSTEM_PROMPTS = 2
"""Families that chats share, counted from 0: those that other returning prompts use too."""

LONGEST = 110
"""Tokens that a prompt reaches."""

_faker = Faker()


@dataclass(slots=True)
class Chat:
    """One user's conversation.

    Attributes:
        system: family of its system prompt.
        length: tokens of the conversation so far.
        salt: the user's tenant.
        adapter: the adapter that the tenant runs.
        engine: where its requests go.
    """

    system: int
    length: int
    salt: str | None
    adapter: str | None
    engine: int


class Traffic:
    """Chats under way; each call is the next request of one of them.

    Args:
        number: what to seed Faker with: equal numbers give equal traffic.
        tenants: whether users belong to tenants, some with adapters of their own.
    """

    def __init__(self, number: int, *, tenants: bool) -> None:
        _faker.seed_instance(number)
        random = _faker.random
        companies = [None, None, *(_faker.company() for _ in range(2))] if tenants else [None]
        adapters = [None, None, _faker.slug()] if tenants else [None]
        self._chats = [
            Chat(
                random.randrange(SYSTEM_PROMPTS),
                16 * random.randint(1, 3) + random.choice((0, 0, 1, 7)),
                random.choice(companies),
                random.choice(adapters),
                random.randrange(2),
            )
            for _ in range(random.randint(2, 4))
        ]
        # What is drawn from here on must not depend on who else uses Faker.
        self._random = Random(random.random())

    def next(self) -> Arrive:
        """The next request."""
        random = self._random
        chat = random.choice(self._chats)
        request = Arrive(
            # Few questions are long, and some are very long.
            Prompt(chat.system, chat.length, min(40, int(random.lognormvariate(1.5, 1.0)))),
            random.choice((1, 2, 4, 20)),
            chat.salt,
            chat.engine,
            adapter=chat.adapter,
        )
        chat.length = min(LONGEST - 40, chat.length + random.choice((0, 8, 16, 23)))
        if not random.randrange(4):
            chat.engine += 1  # a balancer sends the next turn elsewhere
        return request

"""For each rule that a run can break, a wrong connector of the zoo."""

from __future__ import annotations

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.zoo.completion import (
    AlwaysDelays,
    ReportsBothWays,
    ReportsCleanUp,
    ReportsSynchronousLoads,
    SavesWithoutDelay,
)
from kvconform.connectors.zoo.content import KeysOfTokens, ResetInNameOnly
from kvconform.connectors.zoo.double_completion import DoubleCompletion
from kvconform.connectors.zoo.failure import PollsOnlyWhenBusy, RepeatsFailures
from kvconform.connectors.zoo.groups import (
    NamesBlocksOfGroups,
    PromisesTheLongestGroup,
    SavesNullBlocks,
)
from kvconform.connectors.zoo.hooks import CancelsOnTheWorker, NoErrorsIsNone
from kvconform.connectors.zoo.identity import (
    ForgetsEmbeds,
    ForgetsMedia,
    ForgetsTheModel,
    HexInOneHalf,
    IdsOfTheSalted,
)
from kvconform.connectors.zoo.late_failure import LateFailure
from kvconform.connectors.zoo.leak_on_abort import LeakOnAbort
from kvconform.connectors.zoo.lease_ignored import LeaseIgnored
from kvconform.connectors.zoo.leases import OnlyAtTheLimit
from kvconform.connectors.zoo.lookup import (
    ConsumesInLookup,
    CountsAhead,
    NegativePromise,
    NothingInBackground,
    NumpyPromise,
    PendingForEver,
    WholePrompt,
)
from kvconform.connectors.zoo.memory import (
    KeepsPins,
    LoadsFromTheStart,
    RemembersTheDead,
    SavesAtOnce,
    SavesTheFirstTable,
    SentTooSoon,
    TellsNobody,
)
from kvconform.connectors.zoo.metadata import (
    ChangesOutput,
    LiveMetadata,
    OffersASet,
    PlansAgain,
    UnpicklableMetadata,
)
from kvconform.connectors.zoo.observation import (
    AnnouncesPlans,
    CountsForEver,
    KeepsEvents,
    OwnTable,
    ParentIsLastStored,
    ReportsAgain,
    StatisticsOfTwoKinds,
)
from kvconform.connectors.zoo.pins import LocksAreASet
from kvconform.connectors.zoo.restart import LocksTheStore
from kvconform.connectors.zoo.saving import CommitsWhatFailed, SavesFirst, TrustsItsMemory
from kvconform.connectors.zoo.state import ExpectsRest, NeverRests
from kvconform.connectors.zoo.wrong_block import WrongBlock

WRONG: dict[str, type[AscendConnector]] = {
    "KVC-010": CancelsOnTheWorker,
    "KVC-011": NoErrorsIsNone,
    "KVC-101": NegativePromise,
    "KVC-102": WholePrompt,
    "KVC-103": NothingInBackground,
    "KVC-104": NumpyPromise,
    "KVC-105": ConsumesInLookup,
    "KVC-106": PendingForEver,
    "KVC-107": CountsAhead,
    "KVC-108": LocksAreASet,
    "KVC-201": UnpicklableMetadata,
    "KVC-202": LiveMetadata,
    "KVC-203": ChangesOutput,
    "KVC-204": OffersASet,
    "KVC-205": PlansAgain,
    "KVC-206": SavesWithoutDelay,
    "KVC-301": ReportsCleanUp,
    "KVC-302": ReportsSynchronousLoads,
    "KVC-303": DoubleCompletion,
    "KVC-304": LeakOnAbort,
    "KVC-305": ReportsBothWays,
    "KVC-306": SentTooSoon,
    "KVC-307": OnlyAtTheLimit,
    "KVC-401": SavesAtOnce,
    "KVC-402": AlwaysDelays,
    "KVC-403": TellsNobody,
    "KVC-404": LoadsFromTheStart,
    "KVC-405": KeepsPins,
    "KVC-406": RemembersTheDead,
    "KVC-407": SavesTheFirstTable,
    "KVC-501": WrongBlock,
    "KVC-502": CommitsWhatFailed,
    "KVC-503": SavesFirst,
    "KVC-504": KeysOfTokens,
    "KVC-505": HexInOneHalf,
    "KVC-506": ForgetsMedia,
    "KVC-507": ForgetsEmbeds,
    "KVC-508": ForgetsTheModel,
    "KVC-509": IdsOfTheSalted,
    "KVC-601": LateFailure,
    "KVC-602": RepeatsFailures,
    "KVC-603": LeaseIgnored,
    "KVC-604": NamesBlocksOfGroups,
    "KVC-605": TrustsItsMemory,
    "KVC-701": PollsOnlyWhenBusy,
    "KVC-702": NeverRests,
    "KVC-801": ResetInNameOnly,
    "KVC-802": ExpectsRest,
    "KVC-803": SavesNullBlocks,
    "KVC-804": PromisesTheLongestGroup,
    "KVC-808": LocksTheStore,
    "KVC-901": StatisticsOfTwoKinds,
    "KVC-902": CountsForEver,
    "KVC-903": ParentIsLastStored,
    "KVC-904": KeepsEvents,
    "KVC-905": AnnouncesPlans,
    "KVC-906": ReportsAgain,
    "KVC-907": OwnTable,
}
"""Rule id to the connector that breaks it."""

COMPOSED: dict[str, str] = {
    "KVC-805": "loads-all-the-same",
    "KVC-806": "all-load",
    "KVC-807": "keeps-the-count",
}
"""Rule id to a member of the zoo that breaks it: in a composition, where these rules hold."""

"""A reference KV connector for vLLM V1: a host-memory store beside the engine, and P/D by pull.

Read it in this order; each module has one idea:

========================  ==========================================================================
``connector``             the class that vLLM calls; hands every hook to one of two halves
``scheduler``             what may be loaded and saved, and which promises are open
``lives``                 what it remembers of requests and of open jobs
``worker``                carries the plan out and reports, once, what became of it
``metadata``              what crosses between the halves
``transport``             how the halves reach the store, as two small protocols in one
``groups``                KV cache groups beside the first one, of full attention or with a window
``store``                 the host memory: capacity, eviction, pins, reservations
``offers``                what an engine that prefills lets another read, under a lease
``statistics``            what both halves count
``announcements``         which blocks the store holds, for whoever routes requests
``device``                copies of blocks between device and host; ``planes`` knows where their
                          bytes lie, ``npu`` how to copy beside the forwards of an Ascend NPU, and
                          ``rank`` which of them it is
``exchange``              pulls and offers of one rank, whichever process the other engine is in
``peers``                 the same between processes, over ZeroMQ
``remote``                the same transport to a store in another process, over ZeroMQ; beside it
                          ``server`` and ``leases``
``link``, ``service``     the two ends of every connection; beneath them ``sockets`` and ``wire``
``transfers``, ``mover``  what is moved, and the thread that moves what takes time
``settings``              what the user may configure, checked once
========================  ==========================================================================

The folder imports nothing but vLLM, torch, numpy, pyzmq (which vLLM brings along) and itself. To
use it without the rest of this project, copy it to ``kvconform/connectors/ascend`` on the image's
Python path and start vLLM with ``kv_connector="AscendConnector"`` and
``kv_connector_module_path="kvconform.connectors.ascend"``. See the README beside this file.
"""

from kvconform.connectors.ascend.connector import AscendConnector

__all__ = ["AscendConnector"]

"""Overlap inside a layer: what slicing, peer-to-peer parts and async tensor parallelism would buy, from a trace.

A call of a layer becomes a small task graph: a compute stream, a communicator's stream and copy engines, filled by a
host whose calls take time (``program``, ``variants``). ``simulation`` runs it on a few ranks. Costs come from
recordings of the layer as it is (``recording``, ``calibration``), or from shapes (``estimates.layer_overlap``):

- Products: waves of output tiles over SMs (``products``). One time per element of a tile explains every product that
  was recorded, halves and quarters included, to 3 %. Tiles are read from kernels' names, else chosen as cuBLAS does.
- Collectives: a start and bytes over a ring's hops, of two recorded sizes, once all ranks are there.
- Who holds SMs: rules of ``simulation``, of which the factor of products beside sends is that of pipelines
  (``reconstruction.closeup.slowdown``). Where two works become ready together either may come first on each rank: the
  result is the mean.
- The host: calls in multiples of a collective's call, which the trace has with the profiler; 0.72 of it without.

Sources: recordings of four H100 and two H200 over NVLink, and of two H200 through host memory
(tests/data/h200-overlap); CommFuse (decomposition, and its order of parts); Megatron and MindSpeed (data slicing, with
its tail of min(G, C) / n); torch.distributed._symmetric_memory (async tensor parallelism). How calls of the host
compare with a collective's, and the 0.72, were rounded with host-bound rows of both machines in sight.
"""

"""restripe beside raw NCCL, peer copies and other libraries, on every GPU of this host: `nox -s gpu_bench`."""

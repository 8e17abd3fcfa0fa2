"""Real hardware: what only a machine with an NVIDIA driver and a GPU can show.  Everywhere else these tests are skipped.

They need no network and change nothing of the machine, and run in a container as well: each way of making a container that
the machine might allow is tried, and where none works the tests that need one are skipped, with what stood in the way.
"""

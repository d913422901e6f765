"""The kernels' cases of the simulator, on a GPU."""

from simulated_kernels import *  # noqa: F403

"""The plane between GPUs: frames of slots travel over NCCL and are checked where they arrive.

================ =================================================================================
module           what it is
================ =================================================================================
``codes``        every result code: what it means and what ftrt does about it
``capabilities`` what a loaded library can do, and where RCCL differs from NCCL
``settings``     the environment's settings
``loading``      which library is loaded, and whether it fits the driver
``lib``          the one module that calls NCCL
``fake``         a library in plain Python with the same states and rules, across real processes
``states``       the life cycle of a communicator as a table, and every wait in it with a deadline
``pairs``        communicators of two processes, connected before they are needed, ended in threads
``kernels``      numba.cuda kernels that write, clear and check slots
``device``       what the plane needs of a GPU; ``cuda`` is one, ``fake_device`` another
``foreign``      arrays of other libraries, and dtypes that NumPy has no name for
``control``      what both ends of a channel tell each other in shared memory
``send, recv``   the two ends of a channel
``slots``        the memory of one end of a channel
``placement``    which GPU each process uses, and whom a spare can replace there
``plane``        which channels a process has, and over which pair each goes
================ =================================================================================
"""

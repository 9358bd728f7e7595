// table: the kernels of one instruction set, by op name. Compiled once per target.

# What a C++ exception is called in the module: the toolchain's own libraries are built without exceptions and have none.
	.tagtype	__cpp_exception i32
	.globl	__cpp_exception
__cpp_exception:

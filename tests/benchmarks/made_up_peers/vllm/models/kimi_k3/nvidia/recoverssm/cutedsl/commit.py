import a_package_that_nobody_has as cute

KERNEL = cute.kernel

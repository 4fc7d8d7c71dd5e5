"""Makes the fixture ``gpu_benchmark`` known to every test of this repository; it does nothing where it is not used."""

pytest_plugins = ["benchmarks.pytest_plugin"]

"""What files of a store are called."""

import re

MODEL, ID = r"[a-z0-9][a-z0-9._-]{0,63}", r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
STORED = re.compile(rf"(?P<kind>records|nights)/(?P<model>{MODEL})/(?P<id>{ID})\.(?P<ending>json|parquet)")

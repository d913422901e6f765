import pytest
from ledger_support import make_directory


@pytest.fixture
def pool(tmp_path):
    return make_directory(tmp_path)

"""
Random and damaged input at every door: only the package's own errors may come out.

`KBR_FUZZ_EXAMPLES=2000 pytest test/test_fuzz.py test/test_ros_fuzz.py --timeout 0` tries more.
"""

import json
from pathlib import Path

from fuzzing import budget, damaged
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.errors import KbrError
from kbr_localization.ros.saved_pose import load_pose
import numpy as np

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
SAVED = {
    'format': 1,
    'stamp_ns': 10**18,
    'pose': [1.0, 2.0, 3.0],
    'covariance': np.eye(3).tolist(),
    'odometry': [0.0, 0.0, 0.0],
    'map_id': 'abc',
}


@budget(200)
@given(key=st.sampled_from(sorted(SAVED)), value=JSON)
def test_saved_poses_with_a_wrong_value(tmp_path, key, value):
    path = Path(tmp_path / 'pose.json')
    path.write_text(json.dumps({**SAVED, key: value}))
    saved = expect_only_own_errors(lambda: load_pose(path), 'delete the file')
    if saved is not None:
        assert np.isfinite(saved.pose).all() and np.isfinite(saved.covariance).all()
        assert saved.resumed(10**18 + 1, np.zeros(3), 60.0) is not None or key == 'stamp_ns'


@budget(100)
@given(content=st.binary(max_size=200) | st.data())
def test_saved_poses_of_rubbish(tmp_path, content):
    path = Path(tmp_path / 'pose.json')
    whole = json.dumps(SAVED).encode()
    path.write_bytes(content if isinstance(content, bytes) else damaged(whole, content.draw))
    expect_only_own_errors(lambda: load_pose(path), 'delete the file')


def expect_only_own_errors(action, says=''):
    """Return what an action gives, or None when it fails as it should: in one line."""
    try:
        return action()
    except KbrError as error:
        assert '\n' not in str(error) and says in str(error)
        return None

"""
What the estimators share, in the conventions of scikit-learn: parameters, tables, scores.

scikit-learn is not needed: its classes are looked for only when scikit-learn itself asks.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import inspect
import sys
from typing import Any, TypeVar

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.linalg import require_symmetric
from kbr_localization.kernels.selection import median_distance
import numpy as np

Self = TypeVar('Self', bound='Estimator')

PRECOMPUTED = 'precomputed'


class Estimator:
    """
    A regressor with fit, predict, score, get_params and set_params.

    Its parameters are the arguments of its constructor; what `fit` learns ends in an underscore.
    """

    _estimator_type = 'regressor'
    kernel: Any = None
    n_features_in_: int
    _target_shape: tuple[int, ...]

    @classmethod
    def _names(cls) -> list[str]:
        return sorted(
            name for name in inspect.signature(cls.__init__).parameters if name != 'self'
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by their names; `deep` changes nothing, kernels have none."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self: Self, **parameters: Any) -> Self:
        """Set parameters by their names; KernelError for one that is not known."""
        for name, value in parameters.items():
            if name not in self._names():
                raise KernelError(
                    f'{name}: expected one of {", ".join(self._names())}, got a parameter that '
                    f'{type(self).__name__} has not'
                )
            setattr(self, name, value)
        return self

    def predict(self, X: Any) -> FloatArray:
        """Predict y for every row of X; see the class."""
        raise NotImplementedError

    def score(self, X: Any, y: Any) -> float:
        """Return the coefficient of determination, 1 - |y - predict(X)|^2 / |y - mean(y)|^2."""
        truth, predicted = as_floats('y', y), self.predict(X)
        if truth.size != predicted.size or truth.shape[:1] != predicted.shape[:1]:
            raise KernelError(
                f'y: expected shape {predicted.shape}, that of the predictions, got '
                f'{truth.shape}: give one target for each row of X'
            )
        # a column of targets and a flat array of them would be subtracted each from each
        residual = float(np.sum((truth.reshape(predicted.shape) - predicted) ** 2))
        spread = float(np.sum((truth - truth.mean(axis=0)) ** 2))
        return 1.0 - residual / spread if spread > 0 else float(residual == 0)

    def __repr__(self) -> str:
        # like scikit-learn, only what differs from the defaults
        defaults = inspect.signature(type(self).__init__).parameters
        shown = (
            f'{name}={value!r}'
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        )
        return f'{type(self).__name__}({", ".join(shown)})'

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of the estimator; only scikit-learn calls it."""
        utilities = importlib.import_module('sklearn.utils')
        return utilities.Tags(
            estimator_type='regressor',
            target_tags=utilities.TargetTags(required=True, multi_output=True, single_output=True),
            regressor_tags=utilities.RegressorTags(),
            input_tags=utilities.InputTags(pairwise=self._is_precomputed()),
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether fit was called."""
        return hasattr(self, '_target_shape')

    def _is_precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == PRECOMPUTED

    def _begin(self, X: Any, y: Any) -> tuple[Any, FloatArray]:
        """Check the data of fit and remember their shape; y becomes (n, k)."""
        if y is None:
            raise KernelError(
                f'y: expected targets, got none: {type(self).__name__} requires y to be passed, '
                'but the target y is None'
            )
        points, target = self._rows(X), as_target(y)
        if len(points) != len(target):
            raise KernelError(
                f'X, y: expected as many rows in one as in the other, got {len(points)} and '
                f'{len(target)}: inconsistent numbers of samples'
            )
        self._target_shape = target.shape[1:]
        return points, target.reshape(len(target), -1)

    def _is_of_objects(self) -> bool:
        """Whether the kernel takes its data as they are, not as a table."""
        return isinstance(self.kernel, Kernel) and type(self.kernel).encode is not Kernel.encode

    def _rows(self, X: Any) -> Any:
        if self._is_of_objects():
            return self.kernel.encode('X', X)
        table = as_table(X)
        self.n_features_in_ = table.shape[1]
        if self._is_precomputed() and table.shape[0] != table.shape[1]:
            raise KernelError(
                f'X: expected the square Gram matrix of the training sample, got {table.shape}: '
                "with kernel='precomputed' fit takes k(x_i, x_j)"
            )
        if self._is_precomputed():
            require_symmetric('X', table)
        return table

    def _queries(self, X: Any) -> Any:
        """Check the data of predict."""
        if not self.__sklearn_is_fitted__():
            raise _not_fitted(f'{type(self).__name__} is not fitted yet: call fit before predict')
        if self._is_of_objects():
            return self.kernel.encode('X', X)
        table = as_table(X)
        if table.shape[1] != self.n_features_in_:
            raise KernelError(
                f'X has {table.shape[1]} features, but {type(self).__name__} is expecting '
                f'{self.n_features_in_} features as input'
            )
        return table

    def _shaped(self, rows: FloatArray) -> FloatArray:
        """Give predictions (q, k) the shape of the y that fit was given."""
        return np.asarray(rows.reshape(len(rows), *self._target_shape), dtype=np.float64)


def as_table(X: Any) -> FloatArray:
    """Rows of features (n, d), in the words that scikit-learn expects of an error."""
    if hasattr(X, 'tocsr'):
        raise KernelError(
            'X: expected a dense array, got a sparse matrix: sparse data are not supported, use '
            'X.toarray()'
        )
    table = as_floats('X', X)
    if table.ndim != 2:
        raise KernelError(
            f'X: expected (n, d). Expected 2D array, got {table.ndim}D array instead. '
            'Reshape your data with X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one '
            'sample'
        )
    for what, size in (('feature(s)', table.shape[1]), ('sample(s)', table.shape[0])):
        if size == 0:
            raise KernelError(
                f'X: expected rows of numbers, got 0 {what} (shape={table.shape}) while a minimum '
                'of 1 is required.'
            )
    return table


def as_target(y: Any, name: str = 'y') -> FloatArray:
    """Targets (n,) or (n, ...), finite."""
    target = as_floats(name, y)
    if target.ndim == 0 or len(target) == 0:
        raise KernelError(f'{name}: expected one target or more, got shape {target.shape}')
    return target


def resolved(kernel: Kernel | None, points: FloatArray, width: float) -> Kernel:
    """Return the kernel, or the plain Gaussian of `width` times the median distance for None."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel is not None:
        raise KernelError(
            f'kernel: expected a kernel or None, got {kernel!r}: give e.g. GaussianKernel(0.5); '
            "'precomputed' is the `kernel` of ConditionalMeanRegressor and KernelBayesRegressor "
            'only, elsewhere give a PrecomputedKernel'
        )
    factor = as_positive('width', width)
    different = len(points) > 1 and bool(np.any(points != points[0]))
    distance = median_distance(points) if different else 1.0
    return GaussianKernel((factor * distance) ** 2, normalised=False)


def _not_fitted(message: str) -> Exception:
    """Return a KernelError that scikit-learn, where it is in use, knows as its NotFittedError."""
    exceptions = sys.modules.get('sklearn.exceptions')
    if exceptions is None:
        return KernelError(message)
    known: Sequence[type] = (KernelError, exceptions.NotFittedError)
    made: Exception = type('NotFittedError', tuple(known), {})(message)
    return made

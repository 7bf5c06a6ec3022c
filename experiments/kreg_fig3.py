"""
[kReg] Figs. 2 and 3: position of a camera near a table and a chair, from 100x100 images.

The camera circles the table at a varying distance: 0..10 in training, 5..7 in the test. KBR and
pKBR learn from the training run only; kRegBayes also knows that the distance is about 6.
"""

from collections.abc import Sequence
import functools
from typing import Any

from experiments import common, room
from experiments.claims import below, Claim, claim
from experiments.kbr_table1 import kalman_states
from experiments.learnt import learnt_filter, squared_error
from experiments.records import Records, Size
from kbr_localization.kernels import KernelBayesFilter, KernelMean, means, Supervision
from kbr_localization.kernels.kernels import median_kernel
from matplotlib import pyplot
import numpy as np

SCENE = room.furnished()
PIXELS, RADIUS, INCREMENT = 100, 6.0, 0.2
METHODS = ('KBR', 'pKBR', 'kRegBayes', 'Kalman')
DELTA, WEIGHTS = 1e-6, (1e-7, 1e-6, 1e-5, 1e-4)
BINS = np.linspace(0.0, 11.0, 45)


def drive(rng: np.random.Generator, steps: int, nearest: float, farthest: float) -> Any:
    """Simulate positions (steps, 2) of the camera, [kReg] section 5."""
    angle = np.cumsum(INCREMENT + 0.02 * rng.standard_normal(steps))
    distance = np.empty(steps)
    distance[0] = rng.uniform(nearest, farthest)
    for t in range(1, steps):
        distance[t] = np.clip(distance[t - 1] + rng.standard_normal(), nearest, farthest)
    return distance[:, np.newaxis] * np.column_stack([np.cos(angle), np.sin(angle)])


def view(position: Any) -> Any:
    """Render the scene's centre from a position (2,) at a fixed height: (30000,)."""
    eye = np.array([*position, 1.0])
    target = np.array([0.0, 0.0, -1.7])
    # avoid looking straight down on the table's centre: no orientation would be upright
    eye[0] += 1e-3 if np.hypot(*position) < 1e-3 else 0.0
    return SCENE.render(eye, room.looking_at(eye, target), PIXELS).ravel()


def film(positions: Any) -> Any:
    """Return images (T, 30000) from all positions."""
    return np.array([view(position) for position in positions])


def make_filter(x: Any, y: Any, method: str, delta: float, supervise: Any) -> KernelBayesFilter:
    """Return a kernel filter with median bandwidths and ε = 1e-6, the λ of the paper."""
    kernels = median_kernel(x), median_kernel(y)
    return learnt_filter(kernels, x, y, 1e-6, delta, method, supervise)


def supervision(
    circle: Any, weight: float, step: int, belief: KernelMean, image: Any
) -> Supervision:
    """Pair the image with the point of the circle one increment ahead of the belief."""
    mean = belief.mean()
    angle = np.arctan2(mean[1], mean[0]) + INCREMENT
    ahead = RADIUS * np.array([np.cos(angle), np.sin(angle)])
    nearest = circle[[np.argmin(np.sum((circle - ahead) ** 2, axis=1))]]
    return Supervision(image[np.newaxis], nearest, weight)


def trial(
    rng: np.random.Generator, sizes: Sequence[int], steps: int, weights: Sequence[float]
) -> dict[str, Any]:
    """
    Return errors for each training size, from the first images of one film.

    Also return mean squared deviations of the estimated distances from the circle, and histograms
    of these distances for the smallest size.
    """
    runs = [drive(rng, max(sizes), 0.0, 10.0), *(drive(rng, steps, 5.0, 7.0) for _ in range(2))]
    images = film(np.concatenate(runs))
    cuts = np.cumsum([len(run) for run in runs[:-1]])
    exact, small = (np.split(part, cuts) for part in (span_coordinates(images), _shrink(images)))
    training, validation, test = zip(runs, exact, small, strict=True)
    found = [
        errors_of_run([part[:size] for part in training], validation, test, weights)
        for size in sizes
    ]
    distances = found[0][1]
    return {
        'errors': {method: [errors[method] for errors, _ in found] for method in METHODS},
        'spread': {
            method: [np.mean((far[method] - RADIUS) ** 2) for _, far in found]
            for method in METHODS
        },
        'histogram': {name: np.histogram(far, BINS)[0] for name, far in distances.items()},
    }


def span_coordinates(images: Any) -> Any:
    """Return coordinates (T, r), r < T, of images in their span; distances are preserved."""
    centred = images - images.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    kept = values > 1e-13 * values[-1]
    return vectors[:, kept] * np.sqrt(values[kept])


def errors_of_run(
    training: Sequence[Any], validation: Sequence[Any], test: Sequence[Any], weights: Any
) -> tuple[dict[str, float], dict[str, Any]]:
    """
    Return mean squared errors of the positions, and the estimated distances, by method.

    A run consists of positions, images as coordinates, and small images for the linear model. The
    weight of the supervision is chosen on the validation run.
    """
    x, y, small_y = training
    # delta of the squared rule corresponds to delta squared of the thresholded rule
    filters = {
        'KBR': make_filter(x, y, 'squared', DELTA**2, None),
        'pKBR': make_filter(x, y, 'thresholded', DELTA, None),
        'kRegBayes': min(
            (supervised(x, y, weight) for weight in weights),
            key=lambda one: squared_error(means(one.run(validation[1])), validation[0]),
        ),
    }
    estimates = {name: means(one.run(test[1])) for name, one in filters.items()}
    estimates['Kalman'] = kalman_states(x, small_y, test[2])
    errors = {name: squared_error(values, test[0]) for name, values in estimates.items()}
    distances = {name: np.linalg.norm(values, axis=1) for name, values in estimates.items()}
    return errors, distances | {'truth': np.linalg.norm(test[0], axis=1)}


def supervised(x: Any, y: Any, weight: float) -> KernelBayesFilter:
    """Return a kRegBayes filter whose posteriors are drawn to the circle."""
    angles = np.linspace(0.0, 2.0 * np.pi, 2000, endpoint=False)
    circle = RADIUS * np.column_stack([np.cos(angles), np.sin(angles)])
    supervise = functools.partial(supervision, circle, weight)
    return make_filter(x, y, 'thresholded', DELTA, supervise)


def _shrink(images: Any) -> Any:
    """Average blocks of 10 x 10 pixels, for the linear model: (T, 300)."""
    blocks = images.reshape(len(images), PIXELS // 10, 10, PIXELS // 10, 10, 3)
    return blocks.mean(axis=(2, 4)).reshape(len(images), -1)


def judge(records: Records, size: Size) -> common.Outcome:
    """Compare errors over training sizes, and distances for the smallest size."""
    sizes, runs = size.fixed['sizes'], records.at()
    errors = {
        method: {
            n: np.array([run['errors'][method][i] for run in runs]) for i, n in enumerate(sizes)
        }
        for method in METHODS
    }
    rows = common.rows_by('n', errors)
    counts = {
        name: np.sum([run['histogram'][name] for run in runs], axis=0)
        for name in runs[0]['histogram']
    }
    ours = f'MSE at n = {", ".join(map(str, sizes))}: ' + '; '.join(
        f'{method} ' + ', '.join(f'{values.mean():.3g}' for values in by_size.values())
        for method, by_size in errors.items()
    )
    spread = {
        method: np.array([run['spread'][method][0] for run in runs])
        for method in ('pKBR', 'kRegBayes')
    }
    claims = [
        *_claims(errors, sizes),
        below('kRegBayes concentrates the distances about 6', spread['kRegBayes'], spread['pKBR']),
    ]
    return common.Outcome(rows, ours, claims, lambda: _draw(rows, counts))


def _claims(errors: dict[str, dict[int, Any]], sizes: Sequence[int]) -> list[Claim]:
    far = {
        f'n = {n}, {method}': 0.5 * errors['Kalman'][n] - errors[method][n]
        for n in sizes
        for method in METHODS[:3]
    }
    first = {place: values for place, values in far.items() if f'n = {sizes[0]},' in place}
    rest = {place: values for place, values in far.items() if place not in first}
    low, high = sizes[0], sizes[-1]
    gap = {n: errors['pKBR'][n] - errors['KBR'][n] for n in sizes}
    gain = {n: errors['pKBR'][n] - errors['kRegBayes'][n] for n in sizes}
    lowest = {
        f'n = {n}, {rival}': errors[rival][n] - errors['kRegBayes'][n]
        for n in sizes
        for rival in ('KBR', 'pKBR')
    }
    return [
        claim(f'kernel filters far below Kalman (half) at n = {low}', first),
        claim('the same for all larger n', rest),
        claim('pKBR above KBR at every n', {f'n = {n}': values for n, values in gap.items()}),
        claim('the gap of pKBR over KBR closes with n', gap[low] - np.abs(gap[high])),
        claim('kRegBayes lowest of the kernel filters at every n', lowest),
        claim('its advantage over pKBR shrinks with n', gain[low] - gain[high]),
    ]


def _draw(rows: Sequence[common.Row], counts: dict[str, Any]) -> Any:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.5, 3.6), constrained_layout=True)
    common.curves(left, rows, 'n')
    left.set(xlabel='training size n', ylabel='MSE of the position', yscale='log')
    for name in ('truth', *METHODS[:3]):
        right.stairs(counts[name] / counts[name].sum() / np.diff(BINS), BINS, label=name)
    right.set(xlabel='distance from the centre', ylabel='density')
    right.legend()
    return figure


EXPERIMENT = common.Experiment(
    name='kreg_fig3',
    source='[kReg] Figs. 2-3',
    paper='kernel filters far below the linear Kalman filter; pKBR a little above KBR, '
    'the gap closing with n; kRegBayes always lowest, its advantage shrinking with n = 100…300',
    settings='a table and a chair in a room of our own renderer (room.py), camera height 1; x = '
    'r cos θ, y = r sin θ, where the text omits r; median bandwidths, δ = 1e-6 (its square in '
    'the squared rule), ε = 1e-6 as printed; the weight of the supervision by a validation run '
    'for each n, from 1e-7…1e-4 (the text has 1e-5); the point ahead of a belief is one '
    'increment of 0.2 away (the text has 0.4). At n = 100 the error is dominated by films whose '
    'distances, a random walk, hardly reach 5…7: no ε, δ or bandwidth changes that. The scene '
    'matters: in rooms with plain walls Kalman beat KBR at n = 100.',
    sizes={
        'tiny': Size(1, {}, {'sizes': (20, 30), 'steps': 10, 'weights': WEIGHTS}),
        'reduced': Size(2, {}, {'sizes': (100, 200, 300), 'steps': 60, 'weights': WEIGHTS}),
        'full': Size(
            2, {}, {'sizes': (100, 150, 200, 250, 300), 'steps': 200, 'weights': WEIGHTS}
        ),
    },
    trial=trial,
    judge=judge,
)

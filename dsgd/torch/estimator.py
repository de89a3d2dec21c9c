"""The base of `TorchClassifier` and `TorchRegressor`, and the rows that it scores after every epoch."""

from __future__ import annotations

import copy
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils import check_X_y
from sklearn.utils.validation import check_is_fitted
from torch import nn

from dsgd.compress import AbstractCompressor
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.inputs import blocks as row_blocks
from dsgd.inputs.callbacks import History, line_of, notifies_callbacks
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.frames import validated
from dsgd.inputs.named import known_columns, take_tables
from dsgd.inputs.validation import (
    ScoredRows,
    checked_block,
    given_validation,
    refuse_idle,
    refuse_unknown_labels,
    scorer_for,
    split_off,
    take_best,
)
from dsgd.runtime.checkpoints.checkpoint import as_checkpoint
from dsgd.runtime.rank import GangResult
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainJob, TrainResult, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import SimulatedCluster
from dsgd.stages import stage
from dsgd.sync import AbstractStrategy
from dsgd.torch import rows as torch_rows
from dsgd.torch.flat import FlatModule
from dsgd.torch.loop import bound_to, strategy_for
from dsgd.torch.oracle import DEFAULT_BATCH, ModuleOptimizer, predictions
from dsgd.torch.parts import Passes, build_criterion, build_module, check_weighable, fingerprint
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import as_random_state, check_bool, check_choice, check_numbers, warn_user


def _loaded(
    template: nn.Module, params: FloatVector, statistics: Mapping[str, AnyArray], device: str = "cpu"
) -> FlatModule:
    """Return a module with these parameters and buffers."""
    flat = FlatModule(template, device)
    flat.params[:] = params
    flat.to_device()
    torch_rows.ModuleStatistics(template).load(dict(statistics))
    return flat


@dataclass(frozen=True)
class _ModelOf:
    """Makes a fitted estimator of the parameters of a module and its buffers."""

    estimator: Any
    template: nn.Module

    def __call__(self, params: FloatVector, statistics: Mapping[str, AnyArray]) -> Any:
        self.estimator.module_ = _loaded(self.template, params, statistics, self.estimator.device).module.eval()
        return self.estimator


def scored_rows(estimator: Any, given: tuple[Any, Any, Any], template: nn.Module) -> ScoredRows:
    """Return validation rows, checked against the training rows, and what scores a module on them."""
    many = not estimator._is_classification
    options: dict[str, Any] = {"allow_nd": True, "multi_output": many, "dtype": "numeric", "y_numeric": many}

    def check() -> row_blocks.Block:
        X, y, weights = given
        if estimator.dataset is not None:  # nobody here has seen its rows
            X, y = check_X_y(X, y, **options)
        else:
            X, y = validated(estimator, X, y, reset=False, **options)
        return X, y, torch_rows.checked_weights(weights, X)

    block = checked_block(check)
    if estimator._is_classification:
        refuse_unknown_labels(block[1], estimator.classes_)
    bare = estimator._without_client()
    for name in ("_audience", "feature_names_in_", "module_"):
        vars(bare).pop(name, None)
    flat = FlatModule(copy.deepcopy(template))
    statistics = {name: vector.copy() for name, vector in torch_rows.ModuleStatistics(flat.module).vectors().items()}
    found = ScoredRows(_ModelOf(bare, copy.deepcopy(template)), scorer_for(bare), block)
    if torch.device(estimator.device).type == "cpu":  # another device may be there on the workers alone
        found.try_out(type(estimator).__name__, estimator.scoring, flat.params, statistics)
    return found


#: What the names of options begin with that go to a part of the estimator.
PREFIXES = ("module__", "criterion__", "optimizer__")


class AbstractTorchEstimator(AbstractClusterEstimator):
    """A torch module trained by parallel SGD; `TorchClassifier` and `TorchRegressor` are the ones to use."""

    # Set by the final classes' __init__; declared here so that the shared code type-checks.
    module: Any
    criterion: Any
    optimizer: Any
    lr: float
    batch_size: int | None
    max_epochs: int
    sync: Any
    compressor: AbstractCompressor[Any] | str | None
    batch_norm: torch_rows.BatchNormPolicy
    dataset: Any
    passes: Passes | None
    device: str
    n_jobs: int | None
    random_state: Any
    shuffle: bool
    tol: float | None
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    scoring: Any
    restore_best: bool
    callbacks: Sequence[Any] | None
    verbose: int | bool
    _takes: ClassVar = ("on_failure", "checkpoint", "resume_from", "shrink")
    _of_training: ClassVar = (*AbstractClusterEstimator._of_training, "history_")

    @property
    @abstractmethod
    def _is_classification(self) -> bool:
        """Whether targets are classes."""

    @abstractmethod
    def _learn_targets(self, summaries: Sequence[row_blocks.BlockSummary]) -> AnyArray | None:
        """Take in the targets that the blocks hold; return the classes, None for values."""

    # -- training ------------------------------------------------------------------------------------------------

    @notifies_callbacks
    def fit(
        self,
        X: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
    ) -> Self:
        """Train the module from the start.

        Parameters
        ----------
        X : array or dask array, shape (n, ...), table, files of tables, list of delayed blocks, or None
            Rows of any shape, such as images; a dask array is chunked by rows only. Columns of tables are numbers.
            Simulated ranks take a list of tuples (X, y), one for each rank. None where there is a `dataset`.
        y : array, dask array or str, shape (n,) or, for values, (n, k), or None
            Targets, or the name of their column; None where blocks or a dataset hold them.
        sample_weight : array, dask array or str, shape (n,), or None
            Weights of the rows, or the name of their column: training minimises the weighted mean of their losses. In a
            batch that holds all rows a whole number does what repeated rows do; smaller batches are unbiased. Blocks
            may hold it as third of (X, y, sample_weight).
        X_val : array, shape (n_val, ...), optional
            Validation rows, in the memory of this process: they are scored after every epoch, with `early_stopping`
            they decide when to stop, in place of rows held out, and without it they only go into `history_`.
        y_val : array, shape (n_val,) or, for values, (n_val, k)
            Their targets.
        sample_weight_val : array, shape (n_val,), optional
            Their weights in the score.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter has a value it cannot have, or two do not go together (`IncompatiblePartsError`).
        InvalidDataError
            The rows cannot be trained on, or training has diverged.
        VersionMismatchError
            A worker has another version of the module.
        """
        self._check_parameters()
        validation = given_validation(X_val, y_val, sample_weight_val)
        refuse_idle(self, has_rows=validation is not None)
        begin = time.perf_counter()
        (X, y, sample_weight), names = take_tables(self, X, y, sample_weight)
        seed = int(as_random_state(type(self).__name__, self.random_state).randint(np.iinfo(np.int32).max))
        template = build_module(self.module, self._options("module__"), seed)
        if validation is None and self.early_stopping and self.scoring is not None:
            (X, y, sample_weight), validation = split_off(self, (X, y, sample_weight))
        gang = self._run((X, y, sample_weight), template, seed, validation)
        self._take_in(gang, template, time.perf_counter() - begin)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        return self

    def _run(
        self, rows: tuple[Any, Any, Any], template: nn.Module, seed: int, validation: tuple[Any, Any, Any] | None
    ) -> GangResult:
        """Train on any kind of (X, y, sample_weight)."""
        X, y, sample_weight = rows
        supervised = self.dataset is None
        if not supervised:
            if any(part is not None for part in rows):
                raise InvalidDataError(
                    "fit(X, y) must be called without rows where dataset=... makes them on each rank."
                )
            X = np.arange(self._count_ranks(), dtype=np.int64)[:, None]
        n_parts = 0 if supervised else len(X)
        if not self._uses_cluster(X):
            with stage("check") as it:
                block = self._check_rows(X, y, sample_weight)
                summaries = [
                    row_blocks.summarise(
                        block, classification=self._is_classification, supervised=supervised, any_shape=True
                    )
                ]
                it.nbytes = summaries[0].nbytes
            packer, job, watch = self._plan(summaries, template, seed, n_parts, validation)
            n = self._n_threads()
            # Numbers of parts stay in their order, one to a rank.
            shares = row_blocks.pack_for_threads(block, n, packer, seed=seed if self.shuffle and supervised else None)
            return run_on_threads(train, shares, (job,), on_event=self._listeners(), mail=mail_for(job), given=watch)
        expected = row_blocks.Expected(self._is_classification, supervised=supervised, any_shape=True)
        spread = row_blocks.Spread(
            n_ranks=row_blocks.ranks_asked(self.n_jobs),
            seed=seed if self.shuffle and supervised else None,
        )

        def check() -> row_blocks.Block:
            return self._check_rows(X, y, sample_weight)

        with self._open_blocks(X, y, sample_weight, check, expected, spread) as blocks:
            packer, job, watch = self._plan(blocks.summaries, template, seed, n_parts, validation)
            work = row_blocks.Work(
                train, packer, (job,), cut=torch_rows.cut if supervised else None, mail=mail_for(job), given=watch
            )
            return blocks.run(work, self._terms(self._listeners()))

    def _plan(
        self,
        summaries: Sequence[row_blocks.BlockSummary],
        template: nn.Module,
        seed: int,
        n_parts: int,
        validation: tuple[Any, Any, Any] | None,
    ) -> tuple[torch_rows.TensorPacker, TrainJob, ScoredRows | None]:
        """Return what packs the rows, what trains on them, and what scores validation rows on rank 0."""
        row_blocks.check_summaries(summaries)
        weight = torch_rows.mean_weight(summaries)
        if weight is not None:
            check_weighable(build_criterion(self.criterion, self._options("criterion__")))
        flat = FlatModule(template)
        classes = self._learn_targets(summaries)
        watch = None if validation is None else scored_rows(self, validation, template)
        criterion = self.criterion if isinstance(self.criterion, type) else type(self.criterion)
        packer = torch_rows.TensorPacker(
            classes=classes,
            dtype=str(flat.dtype),
            shuffle=self.shuffle,
            seed=seed,
            validation_fraction=float(self.validation_fraction) if self.early_stopping and watch is None else 0.0,
            as_floats=criterion in (nn.BCEWithLogitsLoss, nn.BCELoss, nn.SoftMarginLoss),
            work=flat.n_params,
            dataset=self.dataset,
            n_parts=n_parts,
            mean_weight=weight,
        )
        strategy, gang = bound_to(self._strategy(), flat), self._deployment
        job = TrainJob(
            optimizer=self._optimizer(template, flat),
            strategy=strategy,
            initial=flat.params.copy(),
            max_iter=self.max_epochs,
            tol=self.tol if self.tol is not None or not self.early_stopping else 0.0,
            n_iter_no_change=self.n_iter_no_change,
            early_stopping=self.early_stopping,
            scoring="accuracy" if self._is_classification else "r2",
            validates=watch is not None,
            restore_best=self.restore_best,
            checkpoint=as_checkpoint(gang.checkpoint),
            resume_from=None if gang.resume_from is None else os.fspath(gang.resume_from),
            seed=seed,
            source={"rows": packer} | ({} if watch is None else {"validation": watch.identity}),
        )
        return packer, job, watch

    def _optimizer(self, template: nn.Module, flat: FlatModule) -> ModuleOptimizer:
        """Return what takes local steps, with everything of the module that is not trained."""
        trained = set(flat.names)
        buffers = {k: v.numpy().copy() for k, v in template.state_dict().items() if k not in trained}
        return ModuleOptimizer(
            module=self.module,
            module_options=self._options("module__"),
            buffers=buffers,
            identity=fingerprint(template),
            criterion=self.criterion,
            criterion_options=self._options("criterion__"),
            optimizer=self.optimizer,
            optimizer_options={"lr": self.lr, **self._options("optimizer__")},
            # Where ranks exchange gradients, the batch is the strategy's.
            batch=self.batch_size if self.sync is not None else None,
            batch_norm=self.batch_norm,
            device=self.device,
            is_classification=self._is_classification,
            passes=self.passes or Passes(),
        )

    def _strategy(self) -> AbstractStrategy[Any]:
        """Return the strategy that `sync`, `batch_size` and `compressor` mean together."""
        strategy = strategy_for(self.sync, self.compressor, self.batch_size or DEFAULT_BATCH)
        if self.passes is not None and self.passes.may_overflow and strategy.talks == "by mailbox":
            raise IncompatiblePartsError(
                f"Passes(precision='float16') does not go with sync={strategy!r}: ranks must leave out a step "
                "together, and these do not wait for each other. Use precision='bfloat16'."
            )
        return strategy

    def _take_in(self, gang: GangResult, template: nn.Module, elapsed_s: float) -> None:
        """Set the fitted attributes from what the gang brought home."""
        result: TrainResult = gang.value
        flat = _loaded(template, result.params, result.statistics)
        #: The trained module, plain: its tensors are its own.
        self.module_ = build_module(self.module, self._options("module__"))
        self.module_.load_state_dict(flat.state_dict())
        self.module_.eval()
        self.n_iter_ = result.n_iter
        self.history_ = History.of(result.history, gang.ledger)
        take_best(self, result.history)
        self.sync_history_ = result.periods
        self._take_report(
            gang,
            strategy=repr(self._strategy()),
            n_params=len(result.params),
            elapsed_s=elapsed_s,
            epochs=[dict(vars(record)) for record in result.history],
            converged=result.converged,
        )
        if result.note:
            warn_user(result.note, RuntimeWarning)

    def _listeners(self) -> Callable[[Mapping[str, Any]], None] | None:
        """Return what takes the events of the fit that runs, if anybody listens; they find it in the history."""
        tell, self.history_ = self._listener(), History()
        if tell is None:
            return None

        def listen(event: Mapping[str, Any]) -> None:
            if "train_loss" in event:
                self.history_.append(line_of(event, validates=False))
            tell(event)

        return listen

    @property
    def history(self) -> History:
        """The history under its name in skorch; during training, of the epochs reported so far."""
        return self.history_

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_numbers(self, "lr", low=0, open_low=True)
        check_numbers(self, "max_epochs", "n_iter_no_change", low=1, integer=True)
        check_numbers(self, "validation_fraction", low=0, high=1, open_high=True)
        check_numbers(self, "batch_size", low=1, integer=True, optional=True)
        for flag in ("shuffle", "early_stopping", "restore_best"):
            check_bool(f"{name}({flag}=...)", getattr(self, flag))
        check_choice(f"{name}(batch_norm=...)", self.batch_norm, ("average", "local", "recompute"))
        if self.passes is not None and not isinstance(self.passes, Passes):
            raise InvalidParameterError(f"{name}(passes=...) must be a dsgd.torch.Passes or None. Got {self.passes!r}.")
        if not callable(self.module):
            raise InvalidParameterError(
                f"{name}(module=...) must be a torch.nn.Module, or what makes one. Got {self.module!r}."
            )
        if (
            torch.device(self.device).type == "cuda"
            and self._deployment.client is None
            and not torch.cuda.is_available()
        ):
            raise InvalidParameterError(f"{name}(device={self.device!r}): torch finds no such device here.")

    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> row_blocks.Block:
        """Validate arrays of this process; return (X, y, sample_weight)."""
        if self.dataset is not None:
            self.n_features_in_ = 0
            return X, None, None
        many = not self._is_classification
        X, y = validated(self, X, y, allow_nd=True, multi_output=many, dtype="numeric", y_numeric=many)
        return X, y, torch_rows.checked_weights(sample_weight, X)

    def _n_threads(self) -> int:
        """Return how many ranks there are in this process: on devices, one for each."""
        if self.n_jobs is None and self.device == "cuda":
            return max(1, int(torch.cuda.device_count()))
        return row_blocks.count_threads(self.n_jobs)

    def _count_ranks(self) -> int:
        """Return how many ranks there will be; asked where rows are made on them."""
        client = self._deployment.client
        if isinstance(client, SimulatedCluster):
            return int(client.ranks)
        if client is None:
            return self._n_threads()
        return self.n_jobs or sum(map(int, client.nthreads().values()))

    # -- prediction ----------------------------------------------------------------------------------------------

    def forward(self, X: Any) -> AnyArray:
        """Return the outputs of the module for rows, in evaluation mode.

        Parameters
        ----------
        X : array, shape (n, ...)
            Rows.

        Returns
        -------
        array, shape (n, ...)
            Outputs; of several, the first.
        """
        check_is_fitted(self)
        if self.n_features_in_:
            X = known_columns(self, X)
            X = validated(self, X, allow_nd=True, dtype="numeric", reset=False)
        parameter = next(self.module_.parameters())
        inputs = torch_rows.as_tensor(X, parameter.dtype)
        rows = torch_rows.TensorRows(inputs, torch.zeros(len(inputs)), shuffle=False, seed=0)
        found = [output.cpu() for output, _ in predictions(self.module_, rows, parameter.device)]
        outputs: AnyArray = torch.cat(found).numpy()
        return outputs

    # -- scikit-learn plumbing -----------------------------------------------------------------------------------

    def _options(self, prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in self._prefixed().items() if name.startswith(prefix)}

    def _prefixed(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.startswith(PREFIXES)}

    def _store(self, given: Mapping[str, Any]) -> None:
        """Store the arguments of ``__init__`` unchanged; of its options, those with a prefix."""
        for name, value in given.items():
            if name not in ("self", "options"):
                setattr(self, name, value)
        for name, value in given["options"].items():
            if not name.startswith(PREFIXES):
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected argument {name!r}; options of a part begin with "
                    f"{', '.join(PREFIXES)}"
                )
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, options with a prefix among them; see scikit-learn."""
        return {**super().get_params(deep), **self._prefixed()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, options with a prefix among them; see scikit-learn."""
        options = {name: value for name, value in params.items() if name.startswith(PREFIXES)}
        self.__dict__.update(options)
        super().set_params(**{name: value for name, value in params.items() if name not in options})
        return self

"""The one file that checks whether PyTorch is there."""

from ggsched.errors import BackendUnavailable


def require_torch() -> None:
    """Import PyTorch, or say what to do about its absence.

    Raises:
        BackendUnavailable: it is not installed, or cannot be loaded.
    """
    try:
        import torch  # noqa: F401  # to see whether it can be loaded
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"the module {error.name!r} is not installed",
            where="torch",
            hint="pip install torch",
        ) from error
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            "PyTorch cannot be loaded", where="torch", why=str(error), hint="install torch again"
        ) from error

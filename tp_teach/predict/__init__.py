"""What a run should do, from arithmetic alone: the tables of a `Run` without a process, a GPU or torch."""

from tp_teach.predict.entry import predict

__all__ = ["predict"]

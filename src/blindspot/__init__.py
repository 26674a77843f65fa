"""blindspot: the readout blind spot in looped language models, as one reproducible workflow.

The way of the data is one direction, one folder a stage::

    corpus -> tokens -> train -> measure -> collect -> tables, figures -> report

``config``, ``collect`` and ``publish`` import neither torch nor tokenizers.
"""

__version__ = "0.1.0"

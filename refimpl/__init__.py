"""The reference implementation that every chapter is checked against.

A tensor's name ends in its axes:

| letter | axis                      | letter | axis                        |
| ------ | ------------------------- | ------ | --------------------------- |
| ``B``  | batch                     | ``M``  | model width                 |
| ``T``  | new (query) tokens        | ``F``  | MLP width                   |
| ``S``  | stored (key) tokens       | ``V``  | vocabulary                  |
| ``H``  | query heads               | ``C``  | latent width (MLA)          |
| ``G``  | key-value heads           | ``N``  | physical blocks             |
| ``D``  | head dim                  | ``P``  | slots per block             |
| ``E``  | value dim, if not ``D``   | ``R``  | rotary key width (MLA)      |

Modules stand on five floors and import only from lower floors or from the left on their own:

4. decode, drafters, speculative, engine, simulate
3. cache, flash, sampling, model, weights, kernels
2. rope, attention, quant, machine
1. blocks, prefix, sizing, roofline, capacity
0. units, architecture, hardware

Importing :mod:`refimpl` loads nothing but this text; import the module you need.
"""

__version__ = "0.1.0"

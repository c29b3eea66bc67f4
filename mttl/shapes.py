"""The one legend of letters that every shape in the project uses.

| letter | counts |
|---|---|
| `B` | examples of a batch, each with one task; one stands for all rows that share its weights |
| `R` | rows a layer sees: those of the batch, or expansion times as many while beam search runs |
| `L` | positions (tokens) |
| `I`, `O` | input and output features of a layer |
| `T` | tasks |
| `K` | skills of an inventory |
| `H` | heads: blocks of features that are routed apart |
| `r` | rank of a low-rank skill |
| `G` | routed groups: layers that share one routing row |
| `V` | vocabulary; of dependency trees, words and the root |
| `W` | words of a text |
| `C` | classes: tags, labels or relations |
| `E` | experts of a layer that routes tokens |
| `N` | tokens of a layer's input: rows × positions |
| `P` | pairs of a token and an expert that was chosen for it |
| `M` | layers that route tokens |

Annotations are jaxtyping's (`Float[Tensor, "B H K"]`). They cost nothing at run time; the test
suite switches the checks on.
"""

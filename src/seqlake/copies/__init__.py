"""Training copies of videos: smaller pictures, made ahead, kept beside the originals, dropped without harm.

```text
settings    what a set of copies is: column, size, fit, steps, codec; where it lies
records     what is known of one copy, beside it: the original it was made from, its frames' times
decoding    frames of an original by their numbers, out of its copy
reading     finds a set and the copies in it for whoever trains
making      one copy of one file
choosing    measures what codecs take and give
preparing   all copies of a dataset, in parallel
```
"""

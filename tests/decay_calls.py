"""Nothing in, how the pieces that work on decays are called out: the same in C and in CUDA."""

GUARD = 64  # numbers behind every scratch that stay as they are

# results by name, then what goes in: tiles by name, numbers; "d": decays; "w": scratch
DECAYED = {
    "prefix": "out|d",
    "suffix": "out|d",
    "whole": "out|d",
    "matrix": "out|d",
    "gram": "a|x,y,X,d,w",
    "meet": "a,up,down|x,y,X,d,w",
    "decayed": "out|a,y,X,d,w",
    "meet_pull": "dx,dy,dg|ct,x,y,X,d,w",
    "decayed_pull": "da,dy,dg|ct,a,y,X,d,w",
    "prefix_pull": "dg|ct,d,w",
    "suffix_pull": "dg|ct,d,w",
    "whole_pull": "dg|ct,d,w",
    "matrix_pull": "dg|ct,d,w",
}

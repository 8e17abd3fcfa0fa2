### run -w: a directory that is not there
# says: /made/here
run --rm -w /made/here $IMAGE pwd


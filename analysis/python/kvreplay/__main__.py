from ._program import main

main()

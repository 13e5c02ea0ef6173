from svcd.cli import main

main()

from coordinatord.cli import main

main()

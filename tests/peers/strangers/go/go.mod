module stranger

go 1.20

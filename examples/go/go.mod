module checksums

go 1.22

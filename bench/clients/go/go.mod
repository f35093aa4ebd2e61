module veche/clients

go 1.21

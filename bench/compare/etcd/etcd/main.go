// Command etcd is the unmodified etcd: its own main function does no more than this one. It is here
// because "go install" refuses modules with replace directives, which etcd's module has.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}

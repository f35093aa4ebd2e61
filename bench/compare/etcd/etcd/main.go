// Command etcd is etcd itself, as it comes: its own main calls no more than this does. It is here because
// "go install" refuses a module that replaces others, as etcd's do.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}

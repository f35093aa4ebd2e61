// Command load asks etcd what veche's generator asks its own kind: the same keys, the same values, one request in
// flight for each client, in a closed loop.
//
// It connects once and then takes orders, one JSON object a line, until its input ends; each is answered by one line.
// So connections, and what the runtime learns of its work, last over all rounds of a comparison, and whoever gives the
// orders can read processor times before and after each.
//
//	{"do": "preload", "keys": 1000000, "value_bytes": 100}
//	{"do": "run", "operation": "put", "keys": 1000000, "value_bytes": 100, "warmup_s": 0.3, "seconds": 5, "seed": 1}
//	{"do": "verify", "keys": 1000000, "value_bytes": 100, "samples": 1000}
//
// Operations are "put", "get" (linearizable, as etcd reads unless it is told otherwise) and "get-serializable".
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// dialTimeout is how long a server may take to be there.
const dialTimeout = 10 * time.Second

// Order is what is asked for.
type Order struct {
	Do         string  `json:"do"`
	Operation  string  `json:"operation"`
	Keys       uint64  `json:"keys"`
	ValueBytes int     `json:"value_bytes"`
	WarmupS    float64 `json:"warmup_s"`
	Seconds    float64 `json:"seconds"`
	Seed       uint64  `json:"seed"`
	Samples    uint64  `json:"samples"`
}

// Result is the answer to an order.
type Result struct {
	// Requests is how many were answered, with those of the warm-up.
	Requests uint64 `json:"requests"`
	// Measured is how many were answered after the warm-up.
	Measured uint64 `json:"measured"`
	// Seconds is the time in which they were.
	Seconds float64 `json:"seconds"`
	// Failures is how many were not answered, or not with what they had to be.
	Failures uint64 `json:"failures"`
	// FirstFailure is why.
	FirstFailure string `json:"first_failure,omitempty"`
}

func main() {
	endpoints := flag.String("endpoints", "http://127.0.0.1:2379", "etcd's addresses, with commas")
	clients := flag.Int("clients", 64, "requests in flight")
	connections := flag.Int("connections", 64, "connections that the clients share")
	flag.Parse()
	if err := serve(strings.Split(*endpoints, ","), *clients, *connections); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func serve(endpoints []string, clients, connections int) error {
	load, err := connect(endpoints, clients, connections)
	if err != nil {
		return err
	}
	defer load.close()
	orders := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for orders.Scan() {
		var order Order
		if err := json.Unmarshal(orders.Bytes(), &order); err != nil {
			return fmt.Errorf("order %q: %w", orders.Text(), err)
		}
		result, err := load.carryOut(order)
		if err != nil {
			return err
		}
		if err := answers.Encode(result); err != nil {
			return err
		}
	}
	return orders.Err()
}

func connect(endpoints []string, clients, connections int) (*Load, error) {
	load := &Load{clients: clients}
	for i := range connections {
		client, err := clientv3.New(clientv3.Config{
			// Spread over the nodes evenly, as connections of the other generator are over its targets.
			Endpoints:   []string{endpoints[i%len(endpoints)]},
			DialTimeout: dialTimeout,
			Logger:      zap.NewNop(),
		})
		if err != nil {
			return nil, err
		}
		load.connections = append(load.connections, client)
	}
	return load, nil
}

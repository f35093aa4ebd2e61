// Command load sends etcd the load of veche's generator: the same keys, the same values, one
// request in flight per client, in a closed loop.
//
// It connects once and then takes orders, one JSON object per line, until its input ends. It
// answers each order with one line. Connections and the warmed-up runtime thus last over all rounds
// of a comparison, and the caller can read CPU times before and after each order.
//
//	{"do": "preload", "keys": 1000000, "value_bytes": 100}
//	{"do": "run", "operation": "put", "keys": 1000000, "value_bytes": 100, "warmup_s": 0.3, "seconds": 5, "seed": 1}
//	{"do": "verify", "keys": 1000000, "value_bytes": 100, "samples": 1000}
//
// Operations are "put", "get" (linearizable, etcd's default) and "get-serializable".
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

// dialTimeout bounds the time until a server accepts connections.
const dialTimeout = 10 * time.Second

// Order is a command from the comparison.
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

// Result is the reply to an order.
type Result struct {
	// Requests is the number of answered requests, including the warm-up.
	Requests uint64 `json:"requests"`
	// Measured is the number of answered requests after the warm-up.
	Measured uint64 `json:"measured"`
	// Seconds is the measured time.
	Seconds float64 `json:"seconds"`
	// Failures is the number of requests without a response, or with a wrong one.
	Failures uint64 `json:"failures"`
	// FirstFailure is the error of the first failure.
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
			// Spread evenly over the nodes, as veche's generator spreads connections over its targets.
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

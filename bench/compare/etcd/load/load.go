package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// requestTimeout bounds each request.
	requestTimeout = 10 * time.Second
	// putsPerTransaction is below etcd's limit of 128 operations.
	putsPerTransaction = 100
)

// Load holds the clients and their connections.
type Load struct {
	clients     int
	connections []*clientv3.Client
}

func (load *Load) close() {
	for _, connection := range load.connections {
		connection.Close()
	}
}

func (load *Load) carryOut(order Order) (*Result, error) {
	if order.Keys == 0 {
		return nil, fmt.Errorf("order %q: no keys", order.Do)
	}
	switch order.Do {
	case "preload":
		return load.preload(order), nil
	case "run":
		return load.run(order)
	case "verify":
		return load.verify(order), nil
	default:
		return nil, fmt.Errorf("unknown order %q", order.Do)
	}
}

// counts sums the results of all clients.
type counts struct {
	requests, measured, failures atomic.Uint64
	firstFailure                 sync.Once
	why                          string
}

func (counts *counts) fail(err error) {
	counts.failures.Add(1)
	counts.firstFailure.Do(func() { counts.why = err.Error() })
}

func (counts *counts) result(seconds float64) *Result {
	return &Result{
		Requests:     counts.requests.Load(),
		Measured:     counts.measured.Load(),
		Seconds:      seconds,
		Failures:     counts.failures.Load(),
		FirstFailure: counts.why,
	}
}

// each runs work once per client, concurrently, with the client's connection.
func (load *Load) each(work func(client int, kv clientv3.KV)) {
	var group sync.WaitGroup
	for client := range load.clients {
		kv := load.connections[client%len(load.connections)].KV
		group.Go(func() { work(client, kv) })
	}
	group.Wait()
}

// run sends requests in a closed loop for the ordered time.
func (load *Load) run(order Order) (*Result, error) {
	request, err := requestOf(order)
	if err != nil {
		return nil, err
	}
	var counts counts
	from := time.Now().Add(seconds(order.WarmupS))
	end := from.Add(seconds(order.Seconds))
	load.each(func(client int, kv clientv3.KV) {
		keys := rand.New(rand.NewPCG(order.Seed, uint64(client)))
		for now := time.Now(); now.Before(end); {
			ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
			err := request(ctx, kv, keys.Uint64N(order.Keys))
			cancel()
			now = time.Now()
			if err != nil {
				counts.fail(err)
				continue
			}
			counts.requests.Add(1)
			if now.After(from) && now.Before(end) {
				counts.measured.Add(1)
			}
		}
	})
	return counts.result(order.Seconds), nil
}

// requestOf returns the function that sends one request of the order.
func requestOf(order Order) (func(ctx context.Context, kv clientv3.KV, key uint64) error, error) {
	read := func(options ...clientv3.OpOption) func(context.Context, clientv3.KV, uint64) error {
		return func(ctx context.Context, kv clientv3.KV, key uint64) error {
			answer, err := kv.Get(ctx, keyName(key), options...)
			if err == nil && len(answer.Kvs) != 1 {
				err = fmt.Errorf("key %d is not there", key)
			}
			return err
		}
	}
	switch order.Operation {
	case "put":
		return func(ctx context.Context, kv clientv3.KV, key uint64) error {
			_, err := kv.Put(ctx, keyName(key), value(key, order.ValueBytes))
			return err
		}, nil
	case "get":
		return read(), nil
	case "get-serializable":
		return read(clientv3.WithSerializable()), nil
	default:
		return nil, fmt.Errorf("unknown operation %q", order.Operation)
	}
}

// preload stores every key once, many per transaction. Requests counts the stored keys.
func (load *Load) preload(order Order) *Result {
	var counts counts
	var next atomic.Uint64
	begun := time.Now()
	load.each(func(_ int, kv clientv3.KV) {
		for {
			first := next.Add(putsPerTransaction) - putsPerTransaction
			if first >= order.Keys {
				return
			}
			var puts []clientv3.Op
			for key := first; key < min(first+putsPerTransaction, order.Keys); key++ {
				puts = append(puts, clientv3.OpPut(keyName(key), value(key, order.ValueBytes)))
			}
			if _, err := kv.Txn(context.Background()).Then(puts...).Commit(); err != nil {
				counts.fail(err)
				return
			}
			counts.requests.Add(uint64(len(puts)))
		}
	})
	return counts.result(time.Since(begun).Seconds())
}

// verify reads keys spread over the data and compares their values.
func (load *Load) verify(order Order) *Result {
	var counts counts
	begun := time.Now()
	step := max(order.Keys/max(order.Samples, 1), 1)
	kv := load.connections[0].KV
	for key := uint64(0); key < order.Keys; key += step {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		answer, err := kv.Get(ctx, keyName(key))
		cancel()
		switch {
		case err != nil:
			counts.fail(err)
		case len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != value(key, order.ValueBytes):
			counts.fail(fmt.Errorf("key %d has another value", key))
		default:
			counts.requests.Add(1)
		}
	}
	return counts.result(time.Since(begun).Seconds())
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}

// A smoke test with an unmodified go-redis: connect in RESP2 and RESP3, pipeline, hashes, transactions with WATCH, scans, expiry.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

func must(what string, ok bool, got any) {
	if !ok {
		fmt.Fprintf(os.Stderr, "go-redis: %s: got %v\n", what, got)
		os.Exit(1)
	}
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "go-redis: %s: %v\n", what, err)
		os.Exit(1)
	}
}

type user struct {
	Name string `redis:"name"`
	Age  int    `redis:"age"`
}

func run(address string, protocol int) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ClientName: "smoke"})
	defer client.Close()
	check("flush", client.FlushDB(ctx).Err())
	check("set", client.Set(ctx, "k", "v", time.Minute).Err())
	value, err := client.Get(ctx, "k").Result()
	check("get", err)
	must("get", value == "v", value)
	ttl, err := client.TTL(ctx, "k").Result()
	check("ttl", err)
	must("ttl", ttl > 50*time.Second && ttl <= time.Minute, ttl)
	_, err = client.Get(ctx, "absent").Result()
	must("get of an absent key", errors.Is(err, redis.Nil), err)

	check("hset", client.HSet(ctx, "users:1", user{"Ada", 36}).Err())
	var found user
	check("hgetall", client.HGetAll(ctx, "users:1").Scan(&found))
	must("hgetall", found == user{"Ada", 36}, found)
	age, err := client.HIncrBy(ctx, "users:1", "age", 1).Result()
	check("hincrby", err)
	must("hincrby", age == 37, age)
	codes, err := client.HExpire(ctx, "users:1", time.Minute, "age", "absent").Result()
	check("hexpire", err)
	must("hexpire", len(codes) == 2 && codes[0] == 1 && codes[1] == -2, codes)
	_, err = client.LPush(ctx, "list", "x").Result()
	must("an unknown command", err != nil && err.Error()[:19] == "ERR unknown command", err)

	_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for index := 0; index < 1000; index++ {
			pipe.HSet(ctx, "rows:"+strconv.Itoa(index), "n", index)
		}
		return nil
	})
	check("pipeline", err)
	seen := map[string]bool{}
	iterator := client.Scan(ctx, 0, "rows:*", 50).Iterator()
	for iterator.Next(ctx) {
		seen[iterator.Val()] = true
	}
	check("scan", iterator.Err())
	must("scan", len(seen) == 1000, len(seen))

	err = client.Watch(ctx, func(tx *redis.Tx) error {
		n, err := tx.HGet(ctx, "rows:7", "n").Int()
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.HSet(ctx, "rows:7", "n", n*2)
			pipe.Set(ctx, "doubled", "yes", 0)
			return nil
		})
		return err
	}, "rows:7")
	check("watch", err)
	n, err := client.HGet(ctx, "rows:7", "n").Int()
	check("hget", err)
	must("watch", n == 14, n)
	err = client.Watch(ctx, func(tx *redis.Tx) error {
		check("set outside", client.HSet(ctx, "rows:7", "n", 1).Err())
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.HSet(ctx, "rows:7", "n", 2)
			return nil
		})
		return err
	}, "rows:7")
	must("a watched key that changed", errors.Is(err, redis.TxFailedErr), err)
	commands, err := client.Command(ctx).Result()
	check("command", err)
	must("command", commands["hset"] != nil && commands["hr.scan"] != nil, len(commands))
	fmt.Printf("go-redis: RESP%d ok\n", protocol)
}

func main() {
	run(os.Args[1], 2)
	run(os.Args[1], 3)
}

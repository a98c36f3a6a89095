// The unmodified Go client of Apache RocketMQ, driven by a command line: a JSON object a line tells what it saw.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type seen map[string]any

var (
	namesrv = flag.String("namesrv", "127.0.0.1:9876", "")
	topic   = flag.String("topic", "", "")
	group   = flag.String("group", "", "")
	how     = flag.String("how", "sync", "")
	count   = flag.Int("count", 1, "")
	filter  = flag.String("filter", "", "an expression; with sql: before it one of SQL92")
	wait    = flag.Duration("wait", 30*time.Second, "")
	tls     = flag.Bool("tls", false, "")
	output  sync.Mutex
)

func tell(what seen) {
	output.Lock()
	defer output.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(what)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func producerOptions() []producer.Option {
	return []producer.Option{
		producer.WithGroupName(*group),
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{*namesrv})),
		producer.WithTls(*tls),
	}
}

func told(result *primitive.SendResult) seen {
	return seen{
		"status": int(result.Status), "id": result.MsgID, "offset": result.QueueOffset,
		"queue": result.MessageQueue.QueueId, "offset_id": result.OffsetMsgID,
	}
}

func body(number int) []byte { return []byte(fmt.Sprint(number)) }

func send() {
	options := producerOptions()
	if *how == "traced" {
		options = append(options, producer.WithTrace(&primitive.TraceConfig{
			Access: primitive.Local, Resolver: primitive.NewPassthroughResolver([]string{*namesrv}),
		}))
	}
	if *how == "ordered" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	p, err := rocketmq.NewProducer(options...)
	must(err)
	must(p.Start())
	ctx := context.Background()
	var batch []*primitive.Message
	var answers sync.WaitGroup
	for number := 0; number < *count; number++ {
		message := primitive.NewMessage(*topic, body(number)).WithKeys([]string{fmt.Sprint("key-", number)})
		message.WithProperty("n", fmt.Sprint(number))
		message.WithTag([]string{"even", "odd"}[number%2])
		switch *how {
		case "batch":
			batch = append(batch, message)
			continue
		case "async":
			answers.Add(1)
			must(p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				must(err)
				tell(told(result))
				answers.Done()
			}, message))
			continue
		case "oneway":
			must(p.SendOneWay(ctx, message))
			continue
		case "compressed":
			message.Body = []byte(strings.Repeat(string(message.Body), 20_000))
		case "large":
			message.Body = make([]byte, 3_000_000)
			_, err := rand.Read(message.Body)
			must(err)
			message.WithProperty("crc", fmt.Sprint(crc32.ChecksumIEEE(message.Body)))
		case "ordered":
			message.WithShardingKey(fmt.Sprint(number % 3))
		case "level":
			message.WithDelayTimeLevel(1)
		case "at":
			message.WithDelayTimestamp(time.Now().Add(2 * time.Second))
		}
		result, err := p.SendSync(ctx, message)
		must(err)
		tell(told(result))
	}
	if len(batch) > 0 {
		result, err := p.SendSync(ctx, batch...)
		must(err)
		tell(told(result))
	}
	answers.Wait()
	if *how == "oneway" || *how == "traced" {
		time.Sleep(time.Second) // neither tells when it has left
	}
	must(p.Shutdown())
}

type decisions struct{ checked sync.WaitGroup }

// The outcome of a transaction by its number: committed, rolled back, or told when it is asked for.
func (*decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	var number int
	fmt.Sscan(string(message.Body), &number)
	return []primitive.LocalTransactionState{
		primitive.CommitMessageState, primitive.RollbackMessageState, primitive.UnkonwnState,
	}[number%3]
}

func (d *decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	tell(seen{"asked": string(message.Body)})
	d.checked.Done()
	return primitive.CommitMessageState
}

func transact() {
	listener := &decisions{}
	listener.checked.Add(*count / 3)
	p, err := rocketmq.NewTransactionProducer(listener, producerOptions()...)
	must(err)
	must(p.Start())
	for number := 0; number < *count; number++ {
		result, err := p.SendMessageInTransaction(context.Background(), primitive.NewMessage(*topic, body(number)))
		must(err)
		tell(told(result.SendResult))
	}
	listener.checked.Wait()
	time.Sleep(time.Second) // the answers to the last questions leave
	must(p.Shutdown())
}

func request() {
	p, err := rocketmq.NewProducer(producerOptions()...)
	must(err)
	must(p.Start())
	// A broker knows where replies go once a heartbeat was there. A producer sends its first a second after its start, to
	// those it knows by then, perhaps none; a consumer of the same process sends one for both before it has started.
	c, err := rocketmq.NewPushConsumer(consumerOptions()...)
	must(err)
	must(c.Subscribe(*topic, selector(), func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	for number := 0; number < *count; number++ {
		reply, err := p.Request(context.Background(), *wait, primitive.NewMessage(*topic, body(number)))
		must(err)
		tell(seen{"reply": string(reply.Body)})
	}
	must(c.Shutdown())
	must(p.Shutdown())
}

func selector() consumer.MessageSelector {
	if expression, ok := strings.CutPrefix(*filter, "sql:"); ok {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: *filter}
}

func consumerOptions() []consumer.Option {
	options := []consumer.Option{
		consumer.WithGroupName(*group),
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{*namesrv})),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithTls(*tls),
		consumer.WithConsumerOrder(*how == "orderly"),
	}
	if *how == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	return options
}

func consume() {
	options := consumerOptions()
	var replies rocketmq.Producer
	if *how == "reply" {
		var err error
		replies, err = rocketmq.NewProducer(producerOptions()...)
		must(err)
		must(replies.Start())
	}
	c, err := rocketmq.NewPushConsumer(options...)
	must(err)
	left := *count
	var lock sync.Mutex
	done := make(chan struct{})
	failed := map[string]bool{}
	must(c.Subscribe(*topic, selector(), func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			if *how == "retry" && !failed[string(message.Body)] {
				failed[string(message.Body)] = true
				return consumer.ConsumeRetryLater, nil
			}
			tell(seen{
				"body": string(message.Body), "queue": message.Queue.QueueId, "offset": message.QueueOffset,
				"tag": message.GetTags(), "again": message.ReconsumeTimes, "topic": message.Topic,
			})
			if replies != nil {
				reply, err := consumer.CreateReplyMessage(message, nil) // it drops the body
				must(err)
				reply.Body = append([]byte("re: "), message.Body...)
				_, err = replies.SendSync(ctx, reply)
				must(err)
			}
			if left--; left == 0 {
				close(done)
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	tell(seen{"started": true})
	select {
	case <-done:
	case <-time.After(*wait):
	}
	must(c.Shutdown())
}

func pull() {
	c, err := rocketmq.NewPullConsumer(consumerOptions()...)
	must(err)
	must(c.Subscribe(*topic, selector()))
	must(c.Start())
	queues, err := c.GetTopicRouteInfo(*topic)
	must(err)
	for _, queue := range queues {
		for offset := int64(0); ; {
			result, err := c.PullFrom(context.Background(), queue, offset, 10)
			must(err)
			if result.Status != primitive.PullFound {
				break
			}
			for _, message := range result.GetMessageExts() {
				tell(seen{"body": string(message.Body), "queue": queue.QueueId, "offset": message.QueueOffset})
			}
			if offset = result.NextBeginOffset; offset >= result.MaxOffset {
				break // else the broker holds the next one for 20 s
			}
		}
	}
	must(c.Shutdown())
}

// As a lite pull consumer does: it has queues assigned and pulls ahead, and is asked for what came.
func poll() {
	c, err := rocketmq.NewPullConsumer(consumerOptions()...)
	must(err)
	must(c.Subscribe(*topic, selector()))
	must(c.Start())
	end := time.Now().Add(*wait)
	for left := *count; left > 0; {
		got, err := c.Poll(context.Background(), time.Until(end))
		if errors.Is(err, consumer.ErrNoNewMsg) && time.Now().Before(end) {
			continue
		}
		must(err)
		for _, message := range got.GetMsgList() {
			tell(seen{"body": string(message.Body), "queue": message.Queue.QueueId, "offset": message.QueueOffset})
			left--
		}
		c.ACK(context.Background(), got, consumer.ConsumeSuccess)
	}
	must(c.PersistOffset(context.Background(), *topic))
	must(c.Shutdown())
}

func main() {
	flag.Parse()
	rlog.SetLogLevel("error")
	verbs := map[string]func(){
		"send": send, "transact": transact, "request": request, "consume": consume, "pull": pull, "poll": poll,
	}
	verb, ok := verbs[flag.Arg(0)]
	if !ok {
		fmt.Fprintln(os.Stderr, "send, transact, request, consume, pull or poll")
		os.Exit(2)
	}
	verb()
}

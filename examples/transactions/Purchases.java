import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Reads purchases, and writes for each of them a record of its own and a task of kafleet, in the transaction that also commits
 * the offsets of the purchases. Ends with the first error: its supervisor starts it again.
 *
 * <p>java -cp 'LIBRARIES/*' Purchases.java SERVERS NAME TASK-TOPIC
 */
public class Purchases {
    public static void main(String[] args) {
        String servers = args[0], name = args[1], taskTopic = args[2];
        try (var consumer = consumer(servers, name); var producer = producer(servers, name)) {
            producer.initTransactions();
            consumer.subscribe(List.of(name + ".purchases"));
            while (true) {
                ConsumerRecords<String, String> purchases = consumer.poll(Duration.ofMillis(200));
                if (purchases.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                try {
                    for (ConsumerRecord<String, String> purchase : purchases) {
                        producer.send(new ProducerRecord<>(name + ".accepted", purchase.key(), purchase.value()));
                        producer.send(task(taskTopic, purchase));
                    }
                    producer.sendOffsetsToTransaction(next(purchases), consumer.groupMetadata());
                    producer.commitTransaction();
                } catch (RuntimeException error) {
                    producer.abortTransaction();
                    throw error;
                }
            }
        }
    }

    /** The task of a purchase: the same purchase has the same id. */
    static ProducerRecord<String, String> task(String topic, ConsumerRecord<String, String> purchase) {
        if (purchase.key() == null) {
            throw new IllegalArgumentException("the purchase at offset " + purchase.offset() + " has no key");
        }
        var task = new ProducerRecord<>(topic, purchase.key(), purchase.value());
        task.headers().add("ce_id", ("purchase-" + purchase.key()).getBytes());
        return task;
    }

    /** Offsets behind the purchases. */
    static Map<TopicPartition, OffsetAndMetadata> next(ConsumerRecords<String, String> purchases) {
        var next = new HashMap<TopicPartition, OffsetAndMetadata>();
        for (ConsumerRecord<String, String> purchase : purchases) {
            next.put(new TopicPartition(purchase.topic(), purchase.partition()), new OffsetAndMetadata(purchase.offset() + 1));
        }
        return next;
    }

    static KafkaConsumer<String, String> consumer(String servers, String name) {
        var config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("group.id", name);
        config.put("enable.auto.commit", "false");
        config.put("isolation.level", "read_committed");
        config.put("auto.offset.reset", "earliest");
        config.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        return new KafkaConsumer<>(config);
    }

    static KafkaProducer<String, String> producer(String servers, String name) {
        var config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("transactional.id", name + "-1");
        config.put("transaction.timeout.ms", "10000");
        config.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return new KafkaProducer<>(config);
    }
}

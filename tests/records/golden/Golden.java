// Writes the golden bytes of the Java client, from the records in the file named by the first argument.
// Run by make_golden.py: java -cp <kafka-clients 4.3.1 and its codecs> Golden.java records.txt
// Input, one record a line: timestamp, key, value, then name=value headers; bytes are x and hex, or '-' for null.
// Output, one line each: a name and hex, or "murmur2", a key as in the input and its signed hash.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.utils.Utils;

class Golden {
    static final HexFormat HEX = HexFormat.of();

    static byte[] bytes(String hex) {
        return hex.equals("-") ? null : HEX.parseHex(hex.substring(1));
    }

    static void print(String name, ByteBuffer buffer) {
        byte[] copy = new byte[buffer.remaining()];
        buffer.get(copy);
        System.out.println(name + " " + HEX.formatHex(copy));
    }

    static MemoryRecords batch(List<String[]> records, Compression compression) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1 << 20), (byte) 2, compression, TimestampType.CREATE_TIME,
            0L, -1L, 4711L, (short) 12, 345, true, -1);
        for (String[] fields : records) {
            List<Header> headers = new ArrayList<>();
            for (int i = 3; i < fields.length; i++) {
                String[] header = fields[i].split("=");
                headers.add(new RecordHeader(new String(bytes(header[0]), StandardCharsets.UTF_8), bytes(header[1])));
            }
            builder.append(Long.parseLong(fields[0]), bytes(fields[1]), bytes(fields[2]), headers.toArray(new Header[0]));
        }
        return builder.build();
    }

    public static void main(String[] args) throws Exception {
        List<String[]> records = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) records.add(line.split(" "));
        print("none", batch(records, Compression.NONE).buffer());
        print("gzip", batch(records, Compression.gzip().build()).buffer());
        print("snappy", batch(records, Compression.snappy().build()).buffer());
        print("lz4", batch(records, Compression.lz4().build()).buffer());
        print("zstd", batch(records, Compression.zstd().build()).buffer());
        for (ControlRecordType type : List.of(ControlRecordType.COMMIT, ControlRecordType.ABORT)) {
            print(type.name().toLowerCase(), MemoryRecords.withEndTransactionMarker(
                77L, 1700000000000L, 3, 4711L, (short) 12, new EndTransactionMarker(type, 9)).buffer());
        }
        for (String[] fields : records) {
            byte[] key = bytes(fields[1]);
            if (key != null) System.out.println("murmur2 " + fields[1] + " " + Utils.murmur2(key));
        }
    }
}
